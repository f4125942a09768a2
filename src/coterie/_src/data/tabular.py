"""Synthetic federations whose features look like the columns of real tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import DTypeLike, NDArray
from scipy.special import expit, ndtr, ndtri, pdtr, softmax, stdtrit

from coterie._src.arrays import Floats, Ints
from coterie._src.data.clients import Clients, Federation, Truth
from coterie._src.data.synthetic import Layout, Samples, draw_layout, noise_scale, unit_bernoulli

TaskName = Literal["linear", "logistic", "softmax"]
BINARY_SHARE = 0.1
"""The probability of a 1 in a binary column."""
COUNT_MEAN = 2.0
"""The mean of the Poisson distribution of a column of counts."""
DEGREES = 3
"""The degrees of freedom of Student's t distribution of a heavy column."""
SOFTMAX_NORM = 2.0
"""The norm of the centres of the softmax task."""
MAX_SCALES = 20.0
"""The largest `scales`: e^20 is about 5·10^8."""
REDRAWS = 100
"""How often centres are drawn anew where a separation is asked for and two of them are equal."""
BLOCK = 1 << 18
"""Feature values that are transformed at once, in float64."""


def tabular(
    rng: Generator | int,
    *,
    clients: int = 200,
    clusters: int = 5,
    samples: Samples = 100,
    dim: int = 50,
    task: TaskName = "linear",
    classes: int = 3,
    noise_variance: float = 0.2,
    byzantine: float = 0.05,
    shares: Sequence[float] | None = None,
    separation: float | None = None,
    correlation: float = 0.0,
    factors: int = 0,
    scales: float = 0.0,
    mean: float = 0.0,
    binary: float = 0.0,
    counts: float = 0.0,
    heavy: float = 0.0,
    client_means: float = 0.0,
    client_covariances: float = 0.0,
    spread: float = 0.0,
    intercept: bool = False,
    dtype: DTypeLike = np.float32,
) -> Federation:
    """A mixture of regressions whose features look like the columns of real tables.

    A row starts as z = e + Λf, with e ~ N(0, R), `R_{ll'} = ρ^|l − l'|`, f ~ N(0, I) and one matrix Λ of N(0, 1)
    loadings for the whole federation. Some columns are then made binary, counts or heavy-tailed by the quantile
    transform of z_l, which keeps the order of the values and so the correlation. The row v of client i becomes x =
    s·((I + c·G_i/√d)ᵀ v + μ + μ_i), with a scale s_l for each column. The target is y = ⟨x, θ⟩ + ε,
    y ~ Bernoulli(1/(1 + e^−⟨x, θ⟩)), or y ~ softmax(xW) with θ the flattened (d, classes) matrix W, where θ is the
    centre of the client's cluster. The centres are as those of `mixed_regression`, with norm 1; for softmax each row
    of W has mean 0, since a number that is added to all of its entries does not change the targets, and the norm is 2.
    The data of each of the round(α·m) Byzantine clients come from other parameters, of norm 3.

    With the defaults the features are independent and standard normal, and the federation is that of
    `mixed_regression` with the same arguments, bit for bit.

    Parameters
    ----------
    rng : Generator or int
        What everything is drawn from, or a seed.
    clients : int, default 200
        m, Byzantine ones included.
    clusters : int, default 5
        k.
    samples : int, range or sequence, default 100
        n_i: one number for all clients, a range to draw from, or one number for each.
    dim : int, default 50
        d, the number of feature columns, the intercept included.
    task : {"linear", "logistic", "softmax"}, default "linear"
        The model of the targets.
    classes : int, default 3
        Number of classes of the softmax task.
    noise_variance : float, default 0.2
        The variance of ε in the linear task.
    byzantine : float, default 0.05
        α in [0, 1): round(α·m) clients are Byzantine; they come last.
    shares : sequence of float, optional
        The share of the honest clients in each cluster; by default all the same.
    separation : float, optional
        The smallest distance between two centres; the centres are rescaled around their mean. By default they are as
        drawn.
    correlation : float, default 0
        ρ in (−1, 1), the correlation of neighbouring columns.
    factors : int, default 0
        The number of common factors, the dimension of f.
    scales : float, default 0
        From 0 to 20: s_l is e^u with u uniform between −scales and scales.
    mean : float, default 0
        μ in every column that is not binary.
    binary : float, default 0
        The fraction of the columns that are 1 with probability 0.1 and else 0.
    counts : float, default 0
        The fraction of the columns that have the Poisson distribution with mean 2.
    heavy : float, default 0
        The fraction of the columns that have Student's t distribution with 3 degrees of freedom, rescaled to variance
        1. The three fractions add up to at most 1; which columns they are is random.
    client_means : float, default 0
        The standard deviation of the means μ_i of a client, in every column that is not binary.
    client_covariances : float, default 0
        c, where G_i is a matrix of standard normal numbers for each client. If it is not 0, every column is mixed with
        all others, so that none stays binary or a count.
    spread : float, default 0
        The parameter of each honest client is that of its cluster plus a normal vector of about this norm.
    intercept : bool, default False
        Whether the last column is the constant 1, which nothing else changes.
    dtype : data type, default float32
        Of samples, targets and true centres.

    Returns
    -------
    Federation
        The clients, and the truth about them.

    Examples
    --------
    >>> federation = tabular(0, clients=8, clusters=2, samples=5, dim=4, counts=0.34, binary=0.33, intercept=True)
    >>> federation.clients.features[:4].astype(float).round(1).tolist()
    [[0.0, 1.0, 1.1, 1.0], [0.0, 0.0, -1.5, 1.0], [0.0, 1.0, 1.3, 1.0], [0.0, 5.0, -0.5, 1.0]]
    """
    rng, sigma = default_rng(rng), noise_scale(noise_variance)
    check_fractions(binary=binary, counts=counts, heavy=heavy)
    _check_not_negative(client_means=client_means, client_covariances=client_covariances, spread=spread)
    check_shape(dim, intercept, clusters, separation)
    _check_numbers(task, classes, factors, correlation, scales, mean)
    kind = _real_dtype(dtype)
    drawn = clients, clusters, samples, dim, byzantine, shares, classes if task == "softmax" else 0
    layout = _layout(rng, *drawn)
    if separation is not None:
        for _ in range(REDRAWS):
            if _smallest_distance(layout.centres) >= 1e-12:
                break
            layout = _layout(rng, *drawn)
        layout = layout._replace(centres=_separated(layout.centres, separation, dim))
    total = int(layout.sizes.sum())
    features = rng.standard_normal((total, dim), dtype=np.float32 if kind == np.float32 else np.float64)
    targets = sigma * rng.standard_normal(total) if task == "linear" else rng.random(total)

    table = features[:, : dim - intercept]
    columns = _draw_columns(rng, table.shape[1], factors, scales, (binary, counts, heavy))
    _make_columns(table, columns, correlation, rng)
    _shift_clients(table, layout, columns, mean, client_means, client_covariances, rng)
    features[:, dim - intercept :] = 1

    parameters = layout.client_parameters()
    if spread:
        honest = layout.labels >= 0
        noise = rng.standard_normal((int(honest.sum()), parameters.shape[1]))
        parameters[honest] += spread / np.sqrt(parameters.shape[1]) * noise
    for rows, parameter in zip(layout.rows(), parameters, strict=True):
        _set_targets(targets[rows], features[rows], parameter, task)
    return Federation(
        Clients(features.astype(kind, copy=False), targets.astype(kind), layout.sizes),
        Truth(layout.centres.astype(kind), layout.labels),
    )


# --- parameters -------------------------------------------------------------------------------------------


def _layout(
    rng: Generator,
    clients: int,
    clusters: int,
    samples: Samples,
    dim: int,
    byzantine: float,
    shares: Sequence[float] | None,
    classes: int,
) -> Layout:
    """The layout with parameters of `dim` numbers, or, where there are classes, of dim·classes numbers."""
    if not classes:
        return draw_layout(rng, clients, clusters, samples, dim, byzantine, shares)

    def unit_vectors(count: int, size: int, rng: Generator) -> Floats:
        return _unit_weights(count, size // classes, classes, rng)

    layout = draw_layout(rng, clients, clusters, samples, dim * classes, byzantine, shares, unit_vectors)
    return layout._replace(centres=SOFTMAX_NORM * layout.centres)


def _unit_weights(count: int, dim: int, classes: int, rng: Generator) -> Floats:
    """(count, dim·classes): `unit_bernoulli` with mean 0 over the classes, rescaled to norm 1; zeros are redrawn."""

    def draw(count: int) -> Floats:
        weights = unit_bernoulli(count, dim * classes, rng).reshape(count, dim, classes)
        centred: Floats = (weights - weights.mean(axis=2, keepdims=True)).reshape(count, dim * classes)
        return centred

    weights = draw(count)
    while (empty := np.abs(weights).max(axis=1, initial=0.0) < 1e-12).any():
        weights[empty] = draw(int(empty.sum()))
    unit: Floats = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return unit


def _smallest_distance(centres: Floats) -> float:
    return Truth(centres, np.zeros(0, dtype=np.int64)).separation


def _separated(centres: Floats, separation: float, dim: int) -> Floats:
    """The centres, rescaled around their mean so that the smallest distance between two of them is `separation`."""
    smallest = _smallest_distance(centres)
    if smallest < 1e-12:
        raise ValueError(
            f"separation must be left out where two of the centres drawn are equal (dim = {dim}), got {separation}"
        )
    middle = centres.mean(axis=0)
    moved: Floats = middle + separation / smallest * (centres - middle)
    return moved


# --- features ---------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """What the columns of a federation are."""

    binary: Ints  # indices of columns, likewise counts and heavy
    counts: Ints
    heavy: Ints
    loadings: Floats  # (columns, factors)
    scales: Floats  # (columns,)


def _draw_columns(
    rng: Generator, count: int, factors: int, scales: float, fractions: tuple[float, float, float]
) -> Columns:
    """The kinds, loadings and scales of the columns."""
    order = rng.permutation(count) if any(fractions) else np.arange(count)
    ends = np.rint(np.cumsum(fractions) * count).astype(np.int64)
    return Columns(
        order[: ends[0]],
        order[ends[0] : ends[1]],
        order[ends[1] : ends[2]],
        rng.standard_normal((count, factors)),
        np.exp(rng.uniform(-scales, scales, size=count)) if scales else np.ones(count),
    )


def _make_columns(features: NDArray[Any], columns: Columns, correlation: float, rng: Generator) -> None:
    """From independent standard normal columns to correlated ones of every kind, in place."""
    factors = columns.loadings.shape[1]
    if not (correlation or factors or any(len(kind) for kind in columns[:3])):
        return
    deviations = np.sqrt(1 + (columns.loadings**2).sum(axis=1))
    for rows in _blocks(*features.shape):
        block = features[rows].astype(np.float64)
        for column in range(1, block.shape[1] if correlation else 0):
            block[:, column] *= np.sqrt(1 - correlation**2)
            block[:, column] += correlation * block[:, column - 1]
        if factors:
            block += rng.standard_normal((len(block), factors)) @ columns.loadings.T
        for chosen, transform in (
            (columns.binary, _as_binary),
            (columns.counts, _as_counts),
            (columns.heavy, _as_heavy),
        ):
            if len(chosen):
                block[:, chosen] = transform(block[:, chosen] / deviations[chosen])
        features[rows] = block


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, BLOCK // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _as_binary(normal: Floats) -> Floats:
    """1 above the quantile of a standard normal variable, else 0."""
    return np.asarray(normal > ndtri(1 - BINARY_SHARE), dtype=np.float64)


def _as_counts(normal: Floats) -> Floats:
    """The smallest count whose Poisson distribution function is at least that of the normal variable."""
    distribution = pdtr(np.arange(100), COUNT_MEAN)
    return np.searchsorted(ndtri(distribution[distribution < 1]), normal).astype(np.float64)


def _as_heavy(normal: Floats) -> Floats:
    """The quantile of Student's t distribution, rescaled to variance 1; in the lower tail, where digits are kept."""
    lower = stdtrit(DEGREES, ndtr(-np.abs(normal)))
    return np.asarray(-np.sign(normal) * lower / np.sqrt(DEGREES / (DEGREES - 2)))


def _shift_clients(
    features: NDArray[Any],
    layout: Layout,
    columns: Columns,
    mean: float,
    client_means: float,
    client_covariances: float,
    rng: Generator,
) -> None:
    """The covariances and means of each client and the scales of the columns, in place."""
    count = features.shape[1]
    shifted = np.ones(count)
    shifted[columns.binary] = 0
    if not (mean or client_means or client_covariances or (columns.scales != 1).any()):
        return
    for rows in layout.rows():
        own = features[rows]
        if client_covariances:
            own[:] = own @ (np.eye(count) + client_covariances / np.sqrt(count) * rng.standard_normal((count, count)))
        offset = mean + (client_means * rng.standard_normal(count) if client_means else 0.0)
        own += shifted * offset
        own *= columns.scales


# --- targets ----------------------------------------------------------------------------------------------


def _set_targets(targets: Floats, features: NDArray[Any], parameter: Floats, task: TaskName) -> None:
    """The targets of one client, in place of the noise: normal for the linear task, else uniform on [0, 1)."""
    if task == "linear":
        targets += features @ parameter
    elif task == "logistic":
        targets[:] = targets < expit(features @ parameter)
    else:
        scores = features @ parameter.reshape(features.shape[1], -1)
        targets[:] = (np.cumsum(softmax(scores, axis=1), axis=1)[:, :-1] <= targets[:, None]).sum(axis=1)


# --- checks -----------------------------------------------------------------------------------------------


def check_fractions(**fractions: float) -> None:
    """Raise a ValueError if one of the fractions is not in [0, 1], or their sum is above 1."""
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")
    if sum(fractions.values()) > 1 + 1e-9:
        raise ValueError(f"{' + '.join(fractions)} must be at most 1, got {sum(fractions.values()):g}")


def _check_not_negative(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_shape(dim: int, intercept: bool, clusters: int, separation: float | None) -> None:
    """Raise a ValueError if there are too few columns for an intercept, or centres for a separation."""
    if dim < 1 + bool(intercept):
        raise ValueError(f"dim must be at least {1 + bool(intercept)}{' with an intercept' * intercept}, got {dim}")
    if separation is not None and not 0 < separation < np.inf:
        raise ValueError(f"separation must be positive and finite, got {separation}")
    if separation is not None and clusters == 1:
        raise ValueError(f"separation must be left out where there is one cluster, got {separation}")


def _check_numbers(task: str, classes: int, factors: int, correlation: float, scales: float, mean: float) -> None:
    if task not in get_args(TaskName):
        raise ValueError(f"task must be one of {', '.join(get_args(TaskName))}, got {task!r}")
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    if factors < 0:
        raise ValueError(f"factors must be at least 0, got {factors}")
    if not -1 < correlation < 1:
        raise ValueError(f"correlation must be in (-1, 1), got {correlation}")
    if not 0 <= scales <= MAX_SCALES:
        raise ValueError(f"scales must be in [0, {MAX_SCALES:g}], got {scales}")
    if not np.isfinite(mean):
        raise ValueError(f"mean must be finite, got {mean}")


def _real_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or kind.kind != "f":
        raise ValueError(f"dtype must be a floating-point type, got {dtype!r}")
    return kind
