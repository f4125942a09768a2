"""Every kernel: its compiled form against its reference, with the same signature, on hostile input.

A kernel is found by walking the modules of `kernels`; one without inputs here fails. Tolerances follow from the
precision: a sum of t products is exact up to t·ε times the sum of the absolute products, and the reference itself
computes that sum from the absolute values of the arguments.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from coterie._src import kernels
from coterie._src.kernels.dispatch import Kernel
from coterie._src.kernels.elkan import LowerBounds
from coterie._src.kernels.pairwise import BLOCK
from coterie._src.kernels.second_moments import packed_moments_reference

Arguments = tuple[Any, ...]


def all_kernels() -> dict[str, Kernel]:
    """By the module and the name that they are defined under."""
    found = {}
    for module in pkgutil.walk_packages(kernels.__path__, kernels.__name__ + "."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Kernel) and value.reference.__module__.startswith(module.name):
                found[f"{module.name.removeprefix(kernels.__name__ + '.')}.{name}"] = value
    return found


# --- hostile values -----------------------------------------------------------------------------------


def tables(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> Iterator[tuple[str, np.ndarray]]:
    """Finite values whose sums of squares are still numbers of that type."""
    plain = rng.standard_normal(shape)
    tiny, huge = float(np.finfo(dtype).smallest_subnormal), float(np.finfo(dtype).max) ** 0.25
    yield "normal", plain
    yield "ties", rng.integers(-1, 2, shape).astype(np.float64)
    yield "equal", np.full(shape, 0.1)
    yield "zeros", np.zeros(shape)
    yield "signed zeros and denormals", rng.choice([0.0, -0.0, tiny, -tiny, 3 * tiny, 1.0], shape)
    yield "huge", huge * plain
    yield "all magnitudes", np.sign(plain) * np.exp2(rng.integers(-30, 30, shape))
    yield "far from zero", 1e3 + plain
    yield "one large value", np.where(np.arange(np.prod(shape)).reshape(shape) == 1, huge, plain)


def with_infinite(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    plain = rng.standard_normal(shape)
    yield "some NaN", np.where(rng.random(shape) < 0.1, np.nan, plain)
    yield "some infinite", np.where(rng.random(shape) < 0.2, rng.choice([np.inf, -np.inf], shape), plain)
    yield "all infinite", np.full(shape, -np.inf)
    yield "all NaN", np.full(shape, np.nan)


# --- inputs per kernel --------------------------------------------------------------------------------


class Case(NamedTuple):
    """Arguments, which of them are results, and the largest error of each result (a number or an array)."""

    name: str
    arguments: Arguments
    results: tuple[int, ...]
    errors: tuple[Any, ...]


def order_statistics(dtype: type) -> Iterator[Case]:
    eps, tiny = float(np.finfo(dtype).eps), float(np.finfo(dtype).smallest_subnormal)
    groups: list[tuple[list[int], list[tuple[int, int]]]] = [
        ([12], [(0, 12)]),  # all rows
        ([11], [(5, 6)]),
        ([7, 0, 1, 4], [(2, 5), (0, 1), (0, 1), (1, 3)]),
        ([0, 0], [(0, 1), (0, 1)]),
        ([], []),
    ]
    for columns in (0, 1, 31, 300):
        rng = np.random.default_rng(columns)
        shape = 12, columns
        largest = float(np.finfo(dtype).max)
        extreme = [("largest numbers", rng.choice([largest, -largest, 1.0], shape))]
        for kind, values in [*tables(rng, shape, dtype), *with_infinite(rng, shape), *extreme]:
            rows = values.astype(dtype)
            wide = np.repeat(np.repeat(rows, 2, axis=0), 2, axis=1)[::2, ::2]
            layouts = {"": rows, " non-contiguous": wide, " transposed": np.asfortranarray(rows)}
            for counts, ranks in groups:
                members = rng.permutation(12)[: sum(counts)]
                scale = np.abs(np.where(np.isfinite(rows), rows, 0).astype(np.float64)).max(axis=0, initial=0.0)
                for layout, table in layouts.items() if counts == [11] else [("", rows)]:
                    out = np.full((len(counts), columns), 7.0, dtype)
                    name = f"{columns} columns, {kind}{layout}, groups of {counts}"
                    yield Case(name, (table, members, counts, ranks, out), (4,), (2 * eps * scale + tiny,))


def pairwise(dtype: type) -> Iterator[Case]:
    eps = float(np.finfo(dtype).eps)
    for rows, others, columns in [(1, 1, 1), (5, 9, 0), (6, 3, 40), (4, 4, BLOCK + 5)]:
        rng = np.random.default_rng([rows, columns])
        for kind, values in [
            *tables(rng, (rows + others, columns), dtype),
            *with_infinite(rng, (rows + others, columns)),
        ]:
            table = values.astype(dtype)
            x, y = table[:rows], table[rows:]
            chosen = [(0, columns)] if columns < BLOCK else [(0, columns), (7, columns - 1)]
            for part in chosen:
                for below in (False, True) if rows <= others else (False,):
                    out = np.ones((rows, others))
                    with np.errstate(all="ignore"):
                        exact = (x[:, None, part[0] : part[1]].astype(np.float64) - y[None, :, part[0] : part[1]]) ** 2
                        error = 4 * min(columns, BLOCK) * eps * exact.sum(axis=2) + 4 * eps
                    name = f"{rows} and {others} rows, columns {part}, {kind}, below={below}"
                    yield Case(name, (x, y, part, below, out), (4,), (np.where(np.isfinite(error), error, np.inf),))
    wide = np.random.default_rng(0).standard_normal((8, 60)).astype(dtype)[::2, ::2]
    yield Case("non-contiguous", (wide, wide, (0, 30), True, np.zeros((4, 4))), (4,), (1e3 * eps,))


def sparse_rows(full: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.nonzero(full)
    return np.searchsorted(rows, np.arange(len(full) + 1)), columns.astype(np.uint16), full[rows, columns]


def by_absolute_values(reference: Callable[..., None], arguments: Arguments, results: tuple[int, ...]) -> list[Any]:
    """The results for the absolute values of the arguments: what rounding errors are relative to."""
    absolute = [
        np.abs(a).astype(np.float64) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments
    ]
    with np.errstate(all="ignore"):
        reference(*absolute)
    return [absolute[i] for i in results]


def sparse_products(name: str) -> Callable[[type], Iterator[Case]]:
    def cases(dtype: type) -> Iterator[Case]:
        from coterie._src.kernels import perceptron

        reference = getattr(perceptron, f"{name}_reference")
        eps, tiny = float(np.finfo(dtype).eps), float(np.finfo(dtype).smallest_subnormal)
        for clients, samples, inputs, width in [(1, 1, 1, 1), (2, 3, 40, 5), (3, 9, 17, 19)]:
            rng = np.random.default_rng([clients, inputs])
            shape = clients, samples, inputs
            for kind, values in [*tables(rng, shape, dtype), *with_infinite(rng, shape)]:
                full = np.where(rng.random(shape) < 0.4, values, 0).astype(dtype)
                full[0, 0] = 0  # a row of zeros
                if name == "first_layer":
                    rows = sparse_rows(full.reshape(-1, inputs))
                    weights = rng.standard_normal((2, inputs, width)).astype(dtype)
                    biases = rng.standard_normal((2, width)).astype(dtype)
                    arguments: Arguments = *rows, weights, biases, np.full((2, clients * samples, width), 7.0, dtype)
                else:
                    rows = sparse_rows(np.ascontiguousarray(full.swapaxes(1, 2)).reshape(-1, samples))
                    weights = rng.standard_normal((clients, samples, width)).astype(dtype)
                    arguments = *rows, weights, np.full((clients, width * inputs + 2), 7.0, dtype)
                result = len(arguments) - 1
                (scale,) = by_absolute_values(reference, arguments, (result,))
                error = 2 * max(samples, inputs) * (eps * np.where(np.isfinite(scale), scale, 0) + tiny)
                yield Case(f"{shape} of width {width}, {kind}", arguments, (result,), (error,))

    return cases


def perceptron_slopes(dtype: type) -> Iterator[Case]:
    eps = float(np.finfo(dtype).eps)
    for clients, samples, width, outputs in [(1, 1, 1, 1), (2, 5, 3, 4), (2, 9, 19, 2)]:
        rng = np.random.default_rng([clients, width])
        shape = clients, samples, width
        for kind, values in [*tables(rng, shape, dtype), *with_infinite(rng, shape)]:
            before = values.astype(dtype)
            rest = rng.standard_normal((clients, outputs * (width + 1))).astype(dtype)
            targets = rng.integers(outputs, size=(clients, samples))
            weights, biases = rest[:, : outputs * width].reshape(clients, outputs, width), rest[:, outputs * width :]
            known = np.where(np.isfinite(before), np.maximum(before, 0), 0).astype(np.float64)
            scores = np.einsum("cnh,coh->cno", known, np.abs(weights)).max() + np.abs(biases).max()
            # a score is exact up to width·ε·scores, and a share relatively up to that
            relative = min(1.0, 8 * (width + samples) * eps * (1 + scores))
            errors = (relative * max(1.0, known.max()), relative * np.abs(weights).max())
            results = np.full_like(rest, 7.0), np.full_like(before, 7.0)
            name = f"{shape} with {outputs} outputs, {kind}"
            yield Case(name, (rest, before, targets, *results), (3, 4), errors)


def squared_loss(dtype: type) -> Iterator[Case]:
    from coterie._src.kernels.squared_loss import respond_reference

    eps, tiny = float(np.finfo(dtype).eps), float(np.finfo(dtype).smallest_subnormal)
    for gram, sizes, dim in [(False, [1, 7, 30], 5), (False, [3, 5000], 2), (True, [4, 4, 4], 4), (True, [1], 1)]:
        rng = np.random.default_rng([dim, len(sizes)])
        offsets, m = np.concatenate([[0], np.cumsum(sizes)]), len(sizes)
        for kind, values in tables(rng, (sum(sizes), dim), dtype):
            features = values
            if gram:  # symmetric, as a Gram matrix is
                parts = [np.sqrt(np.abs(values[a:b])) for a, b in itertools.pairwise(offsets)]
                features = np.concatenate([part.T @ part / dim for part in parts])
            rows = np.ascontiguousarray(features.astype(dtype))
            column, floors = rng.standard_normal(len(rows)).astype(dtype), np.zeros(m, dtype)
            centres = rng.standard_normal((4, dim)).astype(dtype)
            centres[2] = centres[1]  # a tie, which goes to the first
            diverged = [np.nan, np.inf, -np.inf]
            for labels, odd in [
                (np.arange(m) % 4, None),
                *((np.zeros(m, np.int64), value) for value in [0.0, *diverged]),
            ]:
                own = centres.copy()
                if odd in diverged or odd != odd:
                    own[3, 0] = odd
                search = odd is not None
                state = LowerBounds.unknown(m, own, gram)
                results = labels.copy(), np.full(m, 7.0, dtype), np.full((m, dim), 7.0, dtype)
                tables_of = state.previous, state.bounds, state.planes, state.steps
                arguments = rows, column, offsets, floors, gram, own, *results, search, *tables_of
                largest = np.abs(np.where(np.isfinite(own), own, 0)).max(axis=0, keepdims=True).repeat(4, axis=0)
                bound = rows, -np.abs(column), offsets, floors, gram, largest, *results, False, *tables_of
                absolute = list(by_signs(bound))
                respond_reference(*absolute)
                terms = 4 * (dim + max(sizes))
                errors = [terms * (eps * absolute[i].astype(np.float64) + tiny) for i in (7, 8)]
                ids = f"{'gram' if gram else 'samples'} of {sizes} in {dim} columns, {kind}, search={search}, {odd}"
                yield Case(ids, arguments, (6, 7, 8), (0, *errors))


def by_signs(arguments: Arguments) -> Iterator[Any]:
    """Rows and centres by their absolute values, in float64; copies of what is written."""
    for i, a in enumerate(arguments):
        if not isinstance(a, np.ndarray):
            yield a
        elif i in (0, 5):
            yield np.abs(a).astype(np.float64)
        else:
            yield a.astype(np.float64) if a.dtype.kind == "f" else a.copy()


def well_formed(dtype: type) -> Iterator[Case]:
    """What it returns is compared; the arguments stay as they are."""
    for m, columns in [(0, 3), (1, 1), (5, 0), (6, 40)]:
        rng = np.random.default_rng([m, columns])
        plain: Arguments = np.arange(m), np.full(m, 2), np.arange(m) % 3
        largest = [("largest numbers", np.full((m, columns), float(np.finfo(dtype).max)))]
        for kind, values in [*tables(rng, (m, columns), dtype), *with_infinite(rng, (m, columns)), *largest]:
            updates = values.astype(dtype)
            yield Case(f"{m} replies of {columns} numbers, {kind}", (*plain, updates, 3, 2), (), ())
            if m > 1 and columns:
                wrong_row = updates.copy()
                wrong_row[m - 1, columns - 1] = np.nan
                yield Case(f"{m} replies, {kind}, a NaN in the last", (*plain, wrong_row, 3, 2), (), ())
        for i in range(3 if m else 0):
            for wrong in (-1, 3, 10**12):
                changed = [part.copy() for part in plain]
                changed[i][m - 1] = wrong
                yield Case(
                    f"{m} replies, {wrong} in argument {i}", (*changed, np.ones((m, columns), dtype), 3, 2), (), ()
                )


def group_rows(dtype: type) -> Iterator[Case]:
    """Of whole numbers, whatever the type."""
    rng = np.random.default_rng(0)
    for labels, clusters in [
        ([], 0), ([], 3), ([0], 1), ([2, 0, 2, 0, 0], 4), ([1] * 7, 3), (rng.integers(9, size=200), 9),
        ([0], 0), ([0, 3], 3), ([-1, 0], 2), ([0, 2**40], 2),
    ]:  # fmt: skip
        rows = np.asarray(labels, dtype=np.int64)
        arguments = rows, np.full(len(rows), 7), np.full(clusters, 7)
        valid = len(rows) == 0 or (rows.min() >= 0 and rows.max() < clusters)
        error = 0 if valid else np.inf  # what is written where a label is out of range means nothing
        yield Case(f"labels {labels!s:.40} of {clusters}", arguments, (1, 2), (error, error))


def squared_products(dtype: type) -> Iterator[Case]:
    """Always float64: the products of rows around a centre."""
    for count, chosen in [(1, 1), (2, 2), (5, 3), (140, 139)]:
        rng = np.random.default_rng(count)
        rows = rng.permutation(count)[:chosen]
        for kind, values in [*tables(rng, (count, count), np.float64), *with_infinite(rng, (count, count))]:
            out = np.full(chosen * (chosen - 1) // 2, 7.0)
            yield Case(f"{chosen} of {count} rows, {kind}", (values.astype(np.float64), rows, out), (2,), (0.0,))


def packed_moments(dtype: type) -> Iterator[Case]:
    eps, tiny = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).smallest_subnormal)
    for clients, samples, dim in [(1, 1, 1), (3, 7, 5), (2, 4, 70), (0, 3, 4)]:
        rng = np.random.default_rng([clients, dim])
        shape = clients, samples, dim
        for kind, values in tables(rng, shape, dtype):
            features = values.astype(dtype)
            layouts = {"": features, " of every second column": np.repeat(features, 2, axis=2)[:, :, ::2]}
            absolute = np.zeros((clients, dim * (dim + 1) // 2))
            packed_moments_reference(np.abs(features), 2.0, absolute)
            for layout, x in layouts.items():
                error = 2 * samples * (eps * absolute + tiny)
                yield Case(f"{shape}, {kind}{layout}", (x, 2.0, np.full_like(absolute, 7.0)), (2,), (error,))


INPUTS: dict[str, Callable[[type], Iterator[Case]]] = {
    "order_statistics._means_between_ranks": order_statistics,
    "pairwise.add_squared_distances": pairwise,
    "pairwise.squared_products": squared_products,
    "perceptron._first_layer": sparse_products("first_layer"),
    "perceptron._weigh": sparse_products("weigh"),
    "perceptron._slopes": perceptron_slopes,
    "replies.group_rows": group_rows,
    "replies.well_formed": well_formed,
    "second_moments.packed_moments": packed_moments,
    "squared_loss._respond": squared_loss,
}


# --- the tests ----------------------------------------------------------------------------------------


def test_every_kernel_has_inputs_here() -> None:
    assert sorted(all_kernels()) == sorted(INPUTS)


@pytest.mark.parametrize("name", INPUTS)
def test_both_forms_have_the_same_parameters(name: str) -> None:
    kernel = all_kernels()[name]
    compiled = kernel.loaded
    ours, theirs = (inspect.signature(getattr(form, "py_func", form)) for form in (kernel.reference, compiled))
    names = [p.name for p in ours.parameters.values() if p.kind is not p.VAR_POSITIONAL]
    assert list(theirs.parameters)[: len(names)] == names
    if len(names) == len(ours.parameters):
        assert len(theirs.parameters) == len(names)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", INPUTS)
def test_the_compiled_form_computes_what_the_reference_does(name: str, dtype: type) -> None:
    kernel, cases = all_kernels()[name], 0
    for case in INPUTS[name](dtype):
        expected, found = (tuple(map(copied, case.arguments)) for _ in range(2))
        with np.errstate(all="ignore"):
            returned = kernel.loaded(*found)
            assert returned == kernel.reference(*expected), f"{name}: {case.name}"
        for i, argument in enumerate(case.arguments):
            if i in case.results:
                check(found[i], expected[i], case.errors[case.results.index(i)], f"{name}: {case.name}, argument {i}")
            elif isinstance(argument, np.ndarray) and i < min(case.results, default=len(found)):
                assert np.array_equal(found[i], argument, equal_nan=argument.dtype.kind == "f"), "an input has changed"
        cases += 1
    assert cases >= 10


def copied(argument: Any) -> Any:
    """A copy in the same layout."""
    if not isinstance(argument, np.ndarray):
        return argument
    base = argument if argument.base is None or argument.flags.contiguous else argument.base
    if base is argument:
        return argument.copy(order="K")
    copy = base.copy()
    return np.lib.stride_tricks.as_strided(copy, argument.shape, argument.strides)


def check(found: np.ndarray, expected: np.ndarray, error: Any, where: str) -> None:
    """NaN and infinities in the same places, and numbers up to the error (an infinite error: not compared)."""
    errors = np.broadcast_to(error, expected.shape)
    compared = errors < np.inf
    finite = np.isfinite(expected) & compared
    assert np.array_equal(np.isnan(found[compared]), np.isnan(expected[compared])), where
    assert np.array_equal(found[compared & ~finite], expected[compared & ~finite], equal_nan=True), where
    apart = np.abs(found[finite].astype(np.float64) - expected[finite])
    assert np.all(apart <= errors[finite]), (where, apart.max(), errors[finite].min())
