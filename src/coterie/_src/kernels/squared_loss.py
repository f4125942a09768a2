"""The squared loss of m clients: loss and gradient at one centre each, and the centre of lowest loss.

The reference states the formulas. The compiled form gives the same numbers up to rounding, by one pass over the samples
in cache-sized blocks and without temporary arrays.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.dispatch import Kernel
from coterie._src.kernels.elkan import MEMORY_SHARE, AssignmentCache, LowerBounds

Floats = NDArray[Any]
Ints = NDArray[np.int64]


class RegressionData(NamedTuple):
    """The samples of m clients, or the statistics G_i = XᵀX/n_i around the minimiser a_i ("Gram form").

    rows: (N, d) and column: (N,), those of client i from offsets[i] to offsets[i + 1]: its features and targets, or G_i
    and a_i. floors: (m,), F_i(a_i), or 0. gram: whether they are statistics. In Gram form
    F_i(θ) = floor_i + (θ − a_i)ᵀ G_i (θ − a_i).
    """

    rows: Floats
    column: Floats
    offsets: Ints
    floors: Floats
    gram: bool

    @classmethod
    def of_samples(cls, features: Any, targets: Any, offsets: Ints) -> RegressionData | None:
        """The data, or None if these are not contiguous NumPy arrays of one floating dtype."""
        features, targets = _as_array(features), _as_array(targets)
        if not _readable(features, targets):
            return None
        return cls(features, targets, offsets, np.zeros(len(offsets) - 1, dtype=features.dtype), False)

    @classmethod
    def of_statistics(cls, minima: Any, floors: Any, grams: Any) -> RegressionData | None:
        """The data from minima (m, d), floors (m,) and grams (m, d, d); None as in `of_samples`."""
        if not _readable(minima, floors, grams):
            return None
        m, d = minima.shape
        return cls(grams.reshape(m * d, d), minima.reshape(m * d), d * np.arange(m + 1), floors, True)

    def fits(self, centres: Any) -> bool:
        """Whether the kernels accept these centres with these data."""
        alike = type(centres) is np.ndarray and centres.dtype == self.rows.dtype and centres.flags.c_contiguous
        return bool(alike and centres.ndim == 2 and centres.shape[1] == self.rows.shape[1])


def _readable(*arrays: Any) -> bool:
    return all(
        type(array) is np.ndarray
        and array.dtype in (np.float32, np.float64)
        and array.dtype == arrays[0].dtype
        and array.flags.c_contiguous
        for array in arrays
    )


def _as_array(array: Any) -> Any:
    """A memory-mapped array as a plain one, and a read-only one as if it were writable, without reading or copying.

    The kernels do not write to the samples, but would be compiled a second time for arrays that are read-only.
    """
    if isinstance(array, np.memmap):
        array = array.view(np.ndarray)
    if type(array) is not np.ndarray or array.flags.writeable:
        return array
    memory = {**array.__array_interface__, "data": (array.ctypes.data, False)}
    return np.asarray(SimpleNamespace(__array_interface__=memory, owner=array))


def respond_reference(
    rows: Floats,
    column: Floats,
    offsets: Ints,
    floors: Floats,
    gram: bool,
    centres: Floats,
    labels: Ints,
    losses: Floats,
    gradients: Floats,
    search: bool,
    *bounds: Any,
) -> None:
    """losses (m,) and gradients (m, d) at the centres that labels (m,) name; `search` finds the labels first.

    F_i(θ) = (1/n_i) Σ_l (x_l·θ − y_l)², or its Gram form. With `search` the label is the first centre of lowest loss;
    NaN counts as infinite. bounds: unused here, since all losses are computed.
    """
    for i in range(len(labels)):
        x, y = rows[offsets[i] : offsets[i + 1]].astype(np.float64), column[offsets[i] : offsets[i + 1]]
        candidates = range(len(centres)) if search else [labels[i]]
        best = np.inf
        for j in candidates:
            if gram:
                gradient = 2.0 * (centres[j] - y) @ x
                loss = 0.5 * ((centres[j] - y) @ gradient)
            else:
                errors = x @ centres[j] - y
                gradient, loss = 2.0 / len(y) * (errors @ x), (errors**2).mean()
            loss = losses.dtype.type(floors[i] + loss)
            found = np.inf if np.isnan(loss) else loss
            if j == candidates[0] or found < best:
                labels[i], losses[i], gradients[i], best = j, loss, gradient, found


_respond = Kernel(respond_reference, "squared_loss_numba:respond")


def losses_and_gradients(data: RegressionData, centres: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """(m,) and (m, d): F_i and ∇F_i of every client at the centre that labels (m,) names."""
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    if labels.shape != data.floors.shape:
        raise ValueError(f"labels must have shape {data.floors.shape}, got {labels.shape}")
    if labels.size and not 0 <= labels.min() <= labels.max() < len(centres):
        raise ValueError(f"labels must be whole numbers in [0, {len(centres)}), got {labels.min()} to {labels.max()}")
    losses, gradients = _empty_outputs(data, centres)
    nothing = LowerBounds.unknown(0, centres, False)
    tables = nothing.previous, nothing.bounds, nothing.planes, nothing.steps
    _respond(*data, centres, labels, losses, gradients, False, *tables)
    return losses, gradients


def best_centres(
    data: RegressionData, centres: Floats, cache: AssignmentCache, sample_bytes: int
) -> tuple[Ints, Floats] | None:
    """(m,) and (m, d): the centre of lowest loss of every client, and its gradient there.

    None if the lower bounds need more than `MEMORY_SHARE` of the samples' memory.
    """
    state = cache.bounds_for(data, centres)
    if state is None:
        if LowerBounds.nbytes(len(data.floors), centres, data.gram) > MEMORY_SHARE * sample_bytes:
            return None
        state = cache.reset(data, LowerBounds.unknown(len(data.floors), centres, data.gram))
    losses, gradients = _empty_outputs(data, centres)
    tables = state.previous, state.bounds, state.planes, state.steps
    _respond(*data, centres, state.labels, losses, gradients, True, *tables)
    return state.labels.copy(), gradients  # the caller may change them


def _empty_outputs(data: RegressionData, centres: Floats) -> tuple[Floats, Floats]:
    m = len(data.floors)
    return np.empty(m, centres.dtype), np.empty((m, centres.shape[1]), centres.dtype)
