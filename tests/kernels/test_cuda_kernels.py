"""Each CUDA kernel of a batched round against its reference on hostile input, and each reference against NumPy.

The kernels need a GPU; their references run anywhere.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie._src.kernels.cuda import aggregation, reference, response, runtime, weiszfeld
from coterie._src.kernels.cuda.reference import CHOOSES, NOWHERE, Ranks

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
RANKS: list[Ranks] = [(None, None), (0.1, None), (0.0, None), (0.0, 30)]
"""Median, trimmed mean, mean, and the sum over 30."""
CLIENTS = [1, 2, 16, 17, 48, 49, 96, 97, 200, 600]
"""Around the sizes of the sorting networks, and beyond them."""


class Problem(NamedTuple):
    """What `respond` takes, less the fixed labels."""

    features: Tensor
    targets: Tensor
    scales: Tensor
    centres: Tensor

    def to(self, *where: Any) -> Problem:
        return Problem(*(part.to(*where) for part in self))


def problem(samples: int, clusters: int, dim: int, methods: int = 4, clients: int = 40, trials: int = 3) -> Problem:
    """Every tenth client is Byzantine; the centres of the methods differ a little."""
    rng = np.random.default_rng([samples, clusters, dim])
    centres = rng.standard_normal((trials, 1, clusters, dim)) + 0.1 * rng.standard_normal((methods, clusters, dim))
    parts = (
        rng.standard_normal((trials, clients, samples, dim)),
        rng.standard_normal((trials, clients, samples)),
        np.where(np.arange(clients) % 10 == 9, 3.0, 1.0) * np.ones((trials, 1)),
        centres / np.sqrt(dim),
    )
    return Problem(*(torch.from_numpy(part).float() for part in parts))


def fixed_labels(problem: Problem) -> Tensor:
    """All clients choose, but for those of the last method: fixed labels, and every fifth client in no cluster."""
    trials, methods, clusters, _ = problem.centres.shape
    m = problem.scales.shape[1]
    fixed = torch.full((trials, methods, m), CHOOSES, dtype=torch.int32)
    own = torch.randint(clusters, (trials, m), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    fixed[:, -1] = torch.where(torch.arange(m) % 5 == 0, NOWHERE, own)
    return fixed.to(problem.centres.device)


def updates(kind: str, clients: int, clusters: int, dim: int = 150) -> tuple[Tensor, Tensor]:
    """(2, 4, clients, dim) updates and labels; with more than one cluster some clients are in none."""
    rng = np.random.default_rng([clients, clusters])
    shape = (2, len(RANKS), clients, dim)
    rows = rng.standard_normal(shape)
    if kind == "ties":
        rows = np.where(rng.random(shape) < 0.2, 0.5, rows)
    elif kind == "equal":
        rows = np.broadcast_to(rng.standard_normal((2, len(RANKS), 1, dim)), shape)
    elif kind == "magnitudes":
        rows = np.sign(rows) * np.exp2(rng.integers(-120, 120, shape))
    elif kind == "zeros and denormals":
        rows = rng.choice([0.0, -0.0, 1e-45, -1e-45, 1e-39, 1.0], shape)
    elif kind == "infinite":
        rows = np.where(np.arange(clients)[:, None] < (clients - 1) // 2, np.inf, rows)
    labels = rng.integers(-1 if clusters > 1 else 0, clusters, shape[:3])
    return torch.from_numpy(np.array(rows)).float(), torch.from_numpy(labels).int()


KINDS = ["normal", "ties", "equal", "magnitudes", "zeros and denormals"]


def ranked_mean(rows: np.ndarray, trim: float | None, over: int | None) -> np.ndarray:
    """An independent form of a mean between ranks, in float64."""
    if trim is None:
        return np.median(rows, axis=0)
    cut = min(int(np.floor(trim * len(rows) + 1e-9)), (len(rows) - 1) // 2)
    kept = np.sort(rows, axis=0)[cut : len(rows) - cut]
    return kept.sum(axis=0) / len(kept) * (len(rows) / (over or len(rows)))


def clustered_points(clusters: int, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points (3, 60, dim), labels, starts and floors: a far outlier, coinciding points, and an empty last cluster."""
    rng = np.random.default_rng([clusters, dim])
    labels = rng.integers(-1, clusters - 1, (3, 60))
    points = rng.standard_normal((3, 60, dim)) + 3 * labels[..., None]
    points[:, 0] = 1e30
    points[:, 1:12] = points[:, 1:2]
    labels[1, 1:12] = 0
    starts = 3.0 * np.arange(clusters)[:, None] + 0.5 * rng.standard_normal((3, clusters, dim))
    parts = torch.from_numpy(points).float(), torch.from_numpy(labels).int(), torch.from_numpy(starts)
    return *parts, torch.full((3, clusters, 1), 1e-5, dtype=torch.float64)


# --- references against NumPy ---------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "clusters", "dim"), [(20, 3, 7), (3, 2, 1), (1, 5, 4)])
def test_the_reference_of_the_response(samples: int, clusters: int, dim: int) -> None:
    given = problem(samples, clusters, dim)
    fixed = fixed_labels(given)
    given.centres[0, 0, 0] = 1e25  # losses there are infinite
    given.centres[1, 0, 0] = torch.nan
    labels, losses, gradients = reference.respond(*given, fixed)
    x, y, scales, centres = (part.double().numpy() for part in given)
    for t, method, i in np.ndindex(*labels.shape):
        errors = scales[t, i] * (centres[t, method] @ x[t, i].T) - y[t, i]  # (k, n)
        expected = (errors**2).mean(axis=1)
        own = int(fixed[t, method, i])
        label = own if own != CHOOSES else int(np.nanargmin(expected))
        assert labels[t, method, i] == (-1 if label == NOWHERE else label)
        at = max(label, 0)
        assert losses[t, method, i] == pytest.approx(expected[at], rel=1e-4)
        gradient = 2 / samples * errors[at] @ x[t, i]
        np.testing.assert_allclose(gradients[t, method, i], gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("clients", [1, 2, 17, 100])
@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_of_the_aggregation(kind: str, clients: int, clusters: int) -> None:
    rows, labels = updates(kind, clients, clusters, dim=9)
    found, sizes = reference.aggregate(rows, labels, clusters, RANKS)
    assert sizes.dtype == torch.int32
    for t, method, j in np.ndindex(*sizes.shape):
        members = rows[t, method][labels[t, method] == j].double().numpy()
        assert sizes[t, method, j] == len(members)
        expected = ranked_mean(members, *RANKS[method]) if len(members) else np.zeros(9)
        scale = np.abs(members).max(axis=0, initial=0.0) * max(1, clients / (RANKS[method][1] or clients))
        assert np.all(np.abs(found[t, method, j].double().numpy() - expected) <= 2e-7 * scale + 2e-45)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_infinite_updates_of_a_minority_do_not_reach_a_median(device: str, clients: int) -> None:
    rows, labels = updates("infinite", clients, 1)
    found, _ = aggregation.aggregate(rows.to(device), labels.to(device), 1, RANKS)
    expected = np.median(rows[:, 0].double().numpy(), axis=1)
    np.testing.assert_allclose(found[:, 0, 0].cpu(), expected, rtol=1e-6, atol=1e-7)
    assert clients < 3 or not found[:, 2:].isfinite().any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_empty_clusters_take_the_gradient_of_one_client(device: str) -> None:
    given = problem(20, 3, 7)
    rng = np.random.default_rng(0)
    sizes = torch.from_numpy(rng.integers(2, size=(3, 4, 3))).int()
    clients = torch.from_numpy(rng.integers(40, size=(3, 4, 3)))
    before = torch.from_numpy(rng.standard_normal((3, 4, 3, 7))).float()
    after = before.clone().to(device)
    on_device = (part.to(device) for part in (*given, sizes, clients))
    aggregation.fill_empty_clusters(*on_device, after)
    for t, method, j in np.ndindex(3, 4, 3):
        if sizes[t, method, j]:
            assert torch.equal(after[t, method, j].cpu(), before[t, method, j])
            continue
        client = clients[t, method, j]
        x, y, scale = (part[t, client].double() for part in given[:3])
        gradient = 2 / 20 * x.T @ (scale * x @ given.centres[t, method, j].double() - y)
        torch.testing.assert_close(after[t, method, j].cpu().double(), gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("clusters", "dim"), [(2, 1), (4, 5)])
def test_the_reference_of_the_geometric_medians(clusters: int, dim: int) -> None:
    """Where it ends the unit vectors to the points cancel out, up to one point that lies there itself."""
    points, labels, medians, floors = clustered_points(clusters, dim)
    start = medians.clone()
    reference.move_to_medians(points, labels, medians, floors, 3000)
    assert torch.equal(medians[:, -1], start[:, -1])
    for t, j in np.ndindex(3, clusters - 1):
        rows, z = points[t][labels[t] == j].double().numpy(), medians[t, j].numpy()
        away = np.linalg.norm(rows - z, axis=1)
        near = away <= 1e-3
        pull = ((rows - z)[~near] / away[~near, None]).sum(axis=0)
        assert np.linalg.norm(pull) <= near.sum() + 1e-2


# --- kernels against their references -------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize(
    ("samples", "clusters", "dim"),
    [(100, 15, 500), (100, 10, 200), (64, 5, 33), (3, 2, 1), (300, 70, 64), (20, 3, 1900), (20, 3, 3000)],
)
def test_the_response_kernel(samples: int, clusters: int, dim: int) -> None:
    given = problem(samples, clusters, dim).to("cuda")
    fixed = fixed_labels(given)
    assert response.serves(given.features, given.centres)
    ours = response.respond(*given, fixed)
    assert_same_response(ours, reference.respond(*given.to(torch.float64), fixed))


def assert_same_response(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    assert (ours[0] == theirs[0]).all()
    torch.testing.assert_close(ours[1].double(), theirs[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[2].double(), theirs[2], rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize(("clusters", "dim", "size"), [(3, 7, 0.3), (15, 100, 0.02), (6, 601, 0.1)])
def test_the_assignment_cache_changes_no_label(clusters: int, dim: int, size: float) -> None:
    """While centres move, some far and some hardly, one of them to where losses are not finite."""
    given = problem(50, clusters, dim, methods=5).to("cuda")
    fixed = torch.full((3, 5, 40), CHOOSES, dtype=torch.int32, device="cuda")
    centres, double = given.centres, given.to(torch.float64)
    cache = response.empty_cache(given.features, centres)
    generator = torch.Generator("cuda").manual_seed(0)
    changed = 0
    before = torch.zeros((3, 5, 40), device="cuda")
    for round in range(60):
        ours = response.respond(*given[:3], centres, fixed, cache)
        assert_same_response(ours, reference.respond(*double[:3], centres.double(), fixed))
        changed += int((ours[0] != before).sum())
        before = ours[0]
        steps = size * torch.randn(centres.shape, device="cuda", generator=generator) / dim**0.5
        steps *= torch.rand(centres.shape[:3], device="cuda", generator=generator)[..., None] ** 4
        if round == 30:
            steps[:, :, 0] = 1e25
        if round == 40:
            steps[:, :, 0] = -1e25
        cache.path_lengths.add_(steps.norm(dim=3))
        centres = centres + steps
    assert changed > 600  # more than the first choice


@needs_gpu
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_aggregation_kernel(kind: str, clients: int, clusters: int) -> None:
    rows, labels = updates(kind, clients, clusters)
    assert aggregation.serves_aggregate(rows.cuda())
    ours, sizes = aggregation.aggregate(rows.cuda(), labels.cuda(), clusters, RANKS)
    theirs, counts = reference.aggregate(rows.double(), labels, clusters, RANKS)
    assert torch.equal(sizes.cpu(), counts)
    if kind in ("normal", "ties"):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-5, atol=1e-6)
    scale = rows.double().abs().amax(dim=2)[:, :, None]  # a mean is exact in units of its largest row
    scale[:, 3] *= max(1, clients / 30)
    smallest = torch.finfo(torch.float32).tiny  # below it, results are flushed to zero: see `runtime.kernel`
    assert ((ours.cpu().double() - theirs).abs() <= 1e-6 * scale + smallest).all()


@needs_gpu
@pytest.mark.parametrize(("clusters", "dim"), [(2, 1), (4, 5), (3, 300)])
def test_the_weiszfeld_kernel(clusters: int, dim: int) -> None:
    points, labels, start, floors = clustered_points(clusters, dim)
    assert weiszfeld.serves(points.cuda())
    for steps in (1, 3, 100):
        ours, theirs = start.cuda(), start.clone()
        weiszfeld.move_to_medians(points.cuda(), labels.cuda(), ours, floors.cuda(), steps)
        reference.move_to_medians(points, labels, theirs, floors, steps)
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-6, atol=1e-4)


# --- programs and shapes --------------------------------------------------------------------------------


def test_tiles_fit_into_any_processor_s_memory() -> None:
    kilobyte = 1024
    for most in (28 * kilobyte, 79 * kilobyte, 143 * kilobyte, 207 * kilobyte):  # a small GPU, and larger ones
        served = []
        for dim in range(1, 5000, 7):
            shape = response.shape_of(100, dim, 4, 15, most)
            served.append(shape is not None)
            if shape is not None:
                assert shape.shared_bytes(4, 15) <= most
                assert shape.rows >= 100 or shape.buffers == 2
        assert served == sorted(served, reverse=True)  # up to some number of columns, without a gap
        assert served[500 // 7]


def test_constants_and_generated_text_are_put_into_the_source() -> None:
    text = runtime.source(["sorted_cluster.cu"], {"THREADS": 32}, rows=2, load="L", sort="S", base="B", total="T")
    assert text.startswith("#define THREADS 32\n")
    assert re.search(r"count <= 2\) \{\n    float t;\nL\nS\n.*\nB\nT\n", text)
    with pytest.raises(KeyError, match="load"):
        runtime.source(["sorted_cluster.cu"], {}, rows=2)


def test_the_generated_branches_sort_a_cluster() -> None:
    """Interpret the comparators of a branch, for clusters that leave wires at infinity: no GPU needed."""
    rng = np.random.default_rng(0)
    for rows, missing in itertools.product(aggregation.SORTED_ROWS, (0, 1, 7)):
        text = aggregation._sorted_cluster(rows)
        values = [*rng.standard_normal(rows - missing), *[np.inf] * missing]
        for a, b in re.findall(r"fminf\(r(\d+), r(\d+)\)", text):
            i, j = int(a), int(b)
            values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
        assert values == sorted(values)
        assert len(re.findall(r"< count \? x\[row", text)) == rows
