"""Fitted estimators in files: safetensors for the arrays, JSON in its header for all else. Nothing is unpickled."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as as_safetensors

from coterie import __version__
from coterie._src.diagnostics import Diagnostics
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.membership import Membership

KEY = "coterie.sklearn"
"""The entry of the file's header that holds the JSON."""
ARRAYS = ("coef_", "intercept_", "site_coef_", "site_intercept_", "cluster_weights_", "labels_")
SCORES = "suspicion_scores"


class Names(BaseModel):
    """Names of sites, of classes or of features: an array without a shape of its own."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    dtype: str
    values: list[str | int | float | bool]

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> Names:
        """The names in an array; the name of the attribute is for messages."""
        values = array.tolist()
        if array.dtype.kind not in "biufUO" or not all(isinstance(one, str | int | float | bool) for one in values):
            raise ValueError(f"{name} must hold strings or numbers to be saved, got {array.dtype}")
        words = {"O": "object", "U": "str"}  # the width of a string type is that of its longest value
        return cls(dtype=words.get(array.dtype.kind, array.dtype.str), values=values)

    def array(self, name: str) -> NDArray[Any]:
        """The array, or what is wrong with it."""
        try:
            dtype = np.dtype(self.dtype)
            if dtype.kind not in "biufUO" or dtype.itemsize > 16:
                raise ValueError(f"{self.dtype} is no type of names")
            found = np.array(self.values, dtype=dtype)
        except (TypeError, ValueError, OverflowError, SyntaxError) as error:
            raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
        if found.shape != (len(self.values),) or found.tolist() != self.values:
            raise ValueError(f"{name}: the values are not of the type {self.dtype}")
        if len(set(self.values)) != len(self.values):
            raise ValueError(f"{name}: a value appears twice")
        return found


class Header(BaseModel):
    """All of a fitted estimator that is no array of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    version: str
    estimator: str
    parameters: dict[str, Any]
    sites: Names
    classes: Names | None
    features: int
    feature_names: Names | None
    rounds: int
    reasons: list[str]
    membership: dict[str, Any] | None
    diagnostics: dict[str, Any] | None


def save(model: Any, path: Path) -> None:
    """Write a fitted estimator."""
    parameters = model.get_params(deep=False)
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    scores, reasons = model._suspicion
    header = Header(
        format=1,
        version=__version__,
        estimator=type(model).__name__,
        parameters={name: _plain(name, value) for name, value in parameters.items()},
        sites=Names.of("sites_", model.sites_),
        classes=None if classes is None else Names.of("classes_", classes),
        features=model.n_features_in_,
        feature_names=None if names is None else Names.of("feature_names_in_", names),
        rounds=model.n_iter_,
        reasons=reasons,
        membership=None if model._membership is None else model._membership.as_dict(),
        diagnostics=None if model.diagnostics_ is None else model.diagnostics_.as_dict(),
    )
    arrays = {name: np.ascontiguousarray(getattr(model, name)) for name in ARRAYS}
    arrays[SCORES] = np.ascontiguousarray(scores)
    write_atomically(path, as_safetensors(arrays, {KEY: header.model_dump_json()}))


def _plain(name: str, value: Any) -> Any:
    """A parameter as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return {str(key): _plain(f"{name}: {key}", inner) for key, inner in value.items()}
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ValueError(f"{name} must be a string or a number to be saved, got {value!r}")
    return value


def load(kind: type[Any], path: Path) -> Any:
    """The estimator of a class that is in a file."""
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: cannot be read as a saved estimator ({str(error).splitlines()[0]})") from None
    if text is None:
        raise ValueError(f"{path}: is no saved estimator of coterie.sklearn")
    try:
        header = Header.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "header"
        raise ValueError(f"{path}: {place}: {first['msg'].splitlines()[0]}") from None
    if header.estimator != kind.__name__:
        raise ValueError(f"{path}: holds a {header.estimator}, not a {kind.__name__}")
    try:
        return _restored(kind, header, arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _restored(kind: type[Any], header: Header, arrays: dict[str, NDArray[Any]]) -> Any:
    known = sorted(kind().get_params(deep=False))
    if sorted(header.parameters) != known:
        raise ValueError(f"parameters must be {', '.join(known)}")
    model = kind(**header.parameters)
    classifies = hasattr(model, "predict_proba")
    if classifies != (header.classes is not None):
        raise ValueError("classes: are for a classifier, which must have them")
    model.sites_ = header.sites.array("sites")
    model.n_features_in_, model.n_iter_ = header.features, header.rounds
    if header.classes is not None:
        model.classes_ = header.classes.array("classes")
        if len(model.classes_) < 2:
            raise ValueError("classes must hold at least two classes")
    if header.feature_names is not None:
        model.feature_names_in_ = header.feature_names.array("feature_names")
    _check_arrays(model, arrays)
    for name in ARRAYS:
        setattr(model, name, arrays[name])
    model.n_clusters_ = len(model.coef_)
    model._membership = None if header.membership is None else Membership.from_dict(header.membership)
    if model._membership is not None and len(model._membership.loss) != model.n_clusters_:
        raise ValueError(f"membership must be of {model.n_clusters_} clusters")
    model.diagnostics_ = None if header.diagnostics is None else Diagnostics.from_dict(header.diagnostics)
    if len(header.reasons) != len(model.sites_):
        raise ValueError(f"reasons must have one text per site ({len(model.sites_)}), got {len(header.reasons)}")
    model._suspicion = arrays[SCORES], header.reasons
    return model


def _check_arrays(model: Any, arrays: dict[str, NDArray[Any]]) -> None:
    """Whether the arrays are those of an estimator with these sites, classes and features."""
    wanted = {*ARRAYS, SCORES}
    if set(arrays) != wanted:
        raise ValueError(f"must hold the arrays {', '.join(sorted(wanted))}")
    sites, columns = len(model.sites_), model.n_features_in_
    clusters = arrays["coef_"].shape[0] if arrays["coef_"].ndim else 0
    if not sites or not clusters or columns < 1:
        raise ValueError("must have at least one site, one cluster and one feature")
    names = getattr(model, "feature_names_in_", None)
    if names is not None and (len(names) != columns or not all(isinstance(one, str) for one in names.tolist())):
        raise ValueError(f"feature_names must be {columns} strings")
    outputs = (model._outputs,) if hasattr(model, "classes_") else ()
    shapes: dict[str, tuple[int, ...]] = {
        "coef_": (clusters, *outputs, columns),
        "intercept_": (clusters, *outputs),
        "site_coef_": (sites, *outputs, columns),
        "site_intercept_": (sites, *outputs),
        "cluster_weights_": (clusters,),
        "labels_": (sites,),
        SCORES: (sites,),
    }
    for name, shape in shapes.items():
        array, dtype = arrays[name], np.int64 if name == "labels_" else np.float64
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} must have shape {shape} in {np.dtype(dtype)}, got {array.shape} in {array.dtype}")
    labels, weights = arrays["labels_"], arrays["cluster_weights_"]
    if labels.min() < -1 or labels.max() >= clusters:
        raise ValueError(f"labels_ must be from -1 to {clusters - 1}")
    if not (weights >= 0).all() or not math.isclose(weights.sum(), 1.0, abs_tol=1e-9):
        raise ValueError("cluster_weights_ must be at least 0 and add up to 1")
