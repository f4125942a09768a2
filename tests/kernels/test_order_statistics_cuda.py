"""Order statistics and the rules above them on a GPU against float64; the generated programs are read without one."""

from __future__ import annotations

import itertools
import re
from typing import Literal

import numpy as np
import pytest
import torch

from coterie._src.aggregators import SpectralFilter, TrimmedMean, mean, median, per_cluster
from coterie._src.aggregators.distance import squared_distances
from coterie._src.kernels.order_statistics import NETWORK_ROWS, cuda, mean_between_ranks
from coterie._src.kernels.order_statistics.network import network

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def oracle(rows: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.sort(rows.astype(np.float64), axis=0)[low:high].mean(axis=0)


def test_the_generated_program_sorts_what_it_needs() -> None:
    """Interpret the generated comparators and compare with np.sort: no GPU needed."""
    rng = np.random.default_rng(0)
    for rows, low, high in [(1, 0, 1), (2, 0, 2), (5, 2, 3), (20, 9, 11), (33, 3, 30)]:
        pairs = [(int(a), int(b)) for a, b in network(rows, low, high)]
        text = cuda.network_source(rows, low, high, pairs, "torch.float32")
        values = list(rng.standard_normal(rows))
        for a, b in re.findall(r"minimum\(r(\d+), r(\d+)\)", text):
            i, j = int(a), int(b)
            values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
        expected = sorted(values)
        assert sorted(values[low:high]) == expected[low:high]  # in any order
        assert len(re.findall(r"odd \|=", text)) == rows
        for place in range(rows) if pairs else []:  # a NaN anywhere, which a comparator hands to both, is summed
            odd = {place}
            for pair in pairs:
                odd |= set(pair) if odd & set(pair) else set()
            assert odd & set(range(low, high))


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float64"])
def test_the_generated_runs_are_sorted_and_whole(dtype: str) -> None:
    """Interpret what a thread does with its run, for all row counts that share a program: no GPU needed."""
    rng = np.random.default_rng(1)
    for rows, wide in itertools.product((65, 66, 128, 400, 513, 1000, 1280), (False, True)):
        shape = cuda.runs_of(rows, 4, 200_000, wide)
        assert shape is not None
        text = cuda.runs_source(*shape, dtype)
        loads = re.findall(r" r(\d+) = (?:run \+ (\d+) >= rows \? BEYOND : )?from\[(\d+) \* step\]", text)
        assert [int(name) for name, _, _ in loads] == [int(row) for _, _, row in loads] == list(range(shape.held))
        column = rng.integers(20, size=rows).astype(float)
        found = []
        for run in range(shape.runs):
            values = [
                np.inf if limit and run + int(limit) >= rows else column[run + int(row) * shape.runs]
                for _, limit, row in loads
            ]
            for a, b in re.findall(r"minimum\(r(\d+), r(\d+)\)", text):
                i, j = int(a), int(b)
                values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
            assert values == sorted(values)
            found += values
        assert sorted(found)[:rows] == sorted(column)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nan_in_any_row_is_in_the_result(dtype: torch.dtype) -> None:
    for rows in (1, 2, 3, 20, 41, 100, 400, 700):
        table = torch.randn((rows, rows + 1), device="cuda", dtype=dtype)
        table.fill_diagonal_(float("nan"))
        for low, high in [((rows - 1) // 2, rows // 2 + 1), (rows // 10, rows - rows // 10), (rows - 1, rows)]:
            found = cuda.mean_between_ranks(table, low, high).cpu()
            assert found.isnan().tolist() == [True] * rows + [False], (rows, low, high)


@needs_gpu
@pytest.mark.parametrize(
    "rows", [1, 2, 3, 7, 20, 40, 49, 100, cuda.REGISTER_ROWS, cuda.REGISTER_ROWS + 1, 512, 513, 1001, 1729, 2600]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_row_count(rows: int, dtype: torch.dtype) -> None:
    table = torch.randn((rows, 1003), device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(dtype)
    exact = table.double().cpu().numpy()
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    ranks = [(0, rows), ((rows - 1) // 2, rows // 2 + 1), (rows // 10, rows - rows // 10)]
    # a long program takes NVRTC tens of seconds
    for low, high in ranks[1:2] if 100 < rows <= cuda.REGISTER_ROWS else ranks:
        found = mean_between_ranks(table, low, high)
        assert found.dtype == dtype
        assert found.device == table.device
        np.testing.assert_allclose(found.double().cpu(), oracle(exact, low, high), rtol=tolerance, atol=tolerance)


@needs_gpu
def test_ties_zeros_denormals_extremes_and_nan() -> None:
    pool = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e38, -1e38, 1.0, 1.0], device="cuda")
    for rows in (31, 64, 301, 700, 1500):  # by a network, and by 8, 16 and 32 runs
        picks = torch.randint(8, (rows, 500), device="cuda", generator=torch.Generator("cuda").manual_seed(2))
        table = pool[picks]
        exact = table.double().cpu().numpy()
        for low, high in [(rows // 2, rows // 2 + 1), (0, rows), (7, rows - 7), (rows - 1, rows), (0, 1)]:
            scale = np.abs(np.sort(exact, axis=0)[low:high]).max(axis=0)
            found = mean_between_ranks(table, low, high).double().cpu().numpy()
            assert np.all(np.abs(found - oracle(exact, low, high)) <= 2e-7 * scale + 1e-44)
        table[3, 7] = float("nan")
        assert torch.isnan(median(table)).nonzero().flatten().tolist() == [7]
        same = torch.full((rows, 4), 1e37, device="cuda")
        assert torch.equal(mean(same), same[0])
        table[4, 9] = float("inf")
        assert torch.isfinite(median(table)[9])


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [225, 400, 1000])
def test_orders_and_outliers_that_mislead_the_runs(rows: int, dtype: torch.dtype) -> None:
    """In order, in reverse, runs that have nothing in common, heaps, spreads over all exponents, infinite values."""
    rng = np.random.default_rng(rows)
    rising, noise = np.arange(rows) - rows / 3, rng.standard_normal(rows)
    columns = [
        rising,
        -rising,
        np.arange(rows) % 32,
        np.arange(rows) % 16 * 1e6 + noise,
        np.where(np.arange(rows) % 32 == 5, 1e30, noise),
        np.where(np.arange(rows) < rows // 2, -1.0, 1.0),
        np.where(np.arange(rows) < rows // 3, np.inf, noise),
        np.where(np.arange(rows) < rows // 3, -np.inf, noise),
        np.where(np.arange(rows) < rows // 2 + 1, -np.inf, np.inf),
        np.where(np.arange(rows) < rows // 3, np.sign(noise) * np.inf, noise),
        np.sign(noise) * np.exp2(rng.integers(-120, 120, rows)),
        np.where(np.arange(rows) % 2, 0.9, -0.9) * float(torch.finfo(dtype).max),
        np.round(noise),
        np.full(rows, -7.25),
    ]
    table = torch.from_numpy(np.stack(columns, axis=1)).to("cuda", dtype)
    ranked = np.sort(table.double().cpu().numpy(), axis=0)
    with np.errstate(invalid="ignore"):
        for rank in (0, rows // 2, rows - 1):
            expected = torch.from_numpy(ranked[rank]).to(dtype)
            np.testing.assert_array_equal(mean_between_ranks(table, rank, rank + 1).cpu(), expected)
        middle = rows // 2 - 1
        for low, high in [(middle, middle + 2), (middle, middle + 3), (rows // 10, rows - rows // 10), (1, rows)]:
            scale = np.abs(np.nan_to_num(ranked[low:high], posinf=0, neginf=0)).max(axis=0)
            found = mean_between_ranks(table, low, high).double().cpu().numpy()
            beside = np.ascontiguousarray(ranked[low:high].T)  # so NumPy adds up in pairs
            exact = (beside / (high - low)).sum(axis=1)
            same = np.isfinite(exact)
            np.testing.assert_array_equal(found[~same], exact[~same])
            assert np.all(np.abs(found - exact)[same] <= (2e-7 if dtype == torch.float32 else 1e-14) * scale[same])


@needs_gpu
def test_layouts_and_the_cpu_agree() -> None:
    wide = torch.randn((44, 2000), device="cuda")
    for view in (wide[::2], wide[:, ::3], wide.T[:40].contiguous().T[:30], wide[:, 5:1500]):
        for rule in (mean, median, TrimmedMean(0.1)):
            np.testing.assert_allclose(rule(view).cpu(), rule(view.cpu()), rtol=2e-6, atol=2e-6)
    labels = np.arange(44) % 5
    ours, counts, _ = per_cluster(median, wide, labels, 6)
    theirs, _, _ = per_cluster(median, wide.cpu(), labels, 6)
    np.testing.assert_allclose(ours.cpu(), theirs, rtol=1e-6, atol=1e-6)
    assert counts.tolist() == [9, 9, 9, 9, 8, 0]


@needs_gpu
def test_the_kernel_is_used_where_it_can_be() -> None:
    assert cuda.serves(torch.zeros((20, 10), device="cuda"))
    assert cuda.serves(torch.zeros((1000, 10), device="cuda"))
    assert cuda.serves(torch.zeros((2560, 10), device="cuda"))
    assert not cuda.serves(torch.zeros((2561, 10), device="cuda"))
    assert NETWORK_ROWS >= cuda.REGISTER_ROWS


@needs_gpu
def test_distances_of_near_and_far_rows() -> None:
    rng = np.random.default_rng(5)
    table = rng.standard_normal((60, 70_000)).astype(np.float32)
    table[:3] += 1e3  # a thousand typical distances from the rest, and near each other
    found = squared_distances(torch.from_numpy(table).cuda())
    np.testing.assert_allclose(found, squared_distances(table.astype(np.float64)), rtol=1e-5)
    assert np.all(found == found.T)
    table[4, 5] = np.inf
    assert np.isinf(squared_distances(torch.from_numpy(table).cuda())[4, 7])


@needs_gpu
@pytest.mark.parametrize("form", ["removal", "no-regret"])
@pytest.mark.parametrize(("rows", "byzantine"), [(48, 10), (300, 60), (700, 200)])
def test_the_filter_stays_on_the_device_with_the_same_result(
    rows: int, byzantine: int, form: Literal["removal", "no-regret"]
) -> None:
    rng = np.random.default_rng(rows)
    table = rng.standard_normal((rows, 3000))
    table[:byzantine] += 20 * rng.standard_normal(3000) / np.sqrt(3000)
    rule = SpectralFilter(byzantine, form)
    found = rule(torch.from_numpy(table).cuda())
    assert found.device.type == "cuda"
    np.testing.assert_allclose(found.cpu(), rule(table), atol=1e-10 if form == "removal" else 1e-6)
    copied = np.concatenate([table[byzantine:], np.tile(table[:1], (byzantine, 1))])
    found = rule(torch.from_numpy(copied).cuda())
    np.testing.assert_allclose(found.cpu(), rule(copied), atol=1e-10 if form == "removal" else 1e-6)
