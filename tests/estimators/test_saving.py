"""Fitted estimators in files: what comes back is what was saved, and a wrong file is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.exceptions import NotFittedError

import coterie as ct
from coterie._src.estimators.saving import KEY
from coterie.sklearn import ClusteredClassifier, ClusteredRegressor
from estimators.sites import classes, numbers


def assert_same(one: Any, other: Any) -> None:
    """The same class, parameters and attributes, bit for bit."""
    assert type(one) is type(other)
    assert one.get_params() == other.get_params()
    assert vars(one).keys() == vars(other).keys()
    for name, value in vars(one).items():
        found = getattr(other, name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, found), name
            assert (value.dtype, value.shape) == (found.dtype, found.shape), name
        elif name not in one.get_params():
            assert repr(value) == repr(found), name
    pd.testing.assert_frame_equal(one.suspicion_, other.suspicion_)


@pytest.mark.parametrize(
    ("labels", "sites"),
    [
        (["no", "yes"], str),
        ([7, 3, 5], int),
        ([False, True], float),
        (np.array(["b", "a", "ccc"], dtype=object), lambda name: int(name[-2:]) / 8),
    ],
)
def test_a_classifier_comes_back(labels: Any, sites: Callable[[str], Any], tmp_path: Path) -> None:
    rows = classes(labels, rows=30)
    groups = [sites(name[-2:]) for name in rows.site]
    model = ClusteredClassifier(max_byzantine=0.1, max_rounds=20, random_state=1).fit(rows.X, rows.y, groups)
    model.save(tmp_path / "model")
    found = ClusteredClassifier.load(tmp_path / "model")
    assert_same(model, found)
    assert np.array_equal(found.predict_proba(rows.X, groups), model.predict_proba(rows.X, groups))
    assert np.array_equal(found.predict(rows.X, groups), model.predict(rows.X, groups))
    assert found.assign(rows.X[:30], rows.y[:30]) == model.assign(rows.X[:30], rows.y[:30])


@pytest.mark.parametrize(
    "options",
    [
        {"n_clusters": "auto"},
        {"method": "brifca-trimmed", "options": {"init": "spectral", "trim": 0.2}, "personalise": "none"},
        {"method": "local"},
        {"method": "global"},
        {"n_clusters": np.int64(1), "unknown": "global", "fit_intercept": False},  # with an infinite separation
    ],
)
def test_a_regressor_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    X, y, site = numbers()
    y = np.where(site == "site 05", np.random.default_rng(0).permutation(y), y)  # one with a reason, in most cases
    frame = pd.DataFrame(X, columns=["age", "dose", "bmi"])
    model = ClusteredRegressor(**options, random_state=np.random.RandomState(0)).fit(frame, y, site)
    model.save(str(tmp_path / "model.safetensors"))
    found = ClusteredRegressor.load(str(tmp_path / "model.safetensors"))
    assert_same(model.set_params(random_state=None), found)
    assert np.array_equal(found.predict(frame, site), model.predict(frame, site))


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    X, y, site = numbers()
    with pytest.raises(NotFittedError):
        ClusteredRegressor().save(tmp_path / "model")
    model = ClusteredRegressor(random_state=0).fit(X, y, site).set_params(unknown=np.zeros(2))
    with pytest.raises(ValueError, match=r"^unknown must be a string or a number to be saved, got array"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


# --- wrong files ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    rows = classes(["no", "yes"], rows=20)
    ClusteredClassifier(max_rounds=5, random_state=0).fit(*rows).save(path)
    return path


def header(path: Path) -> dict[str, Any]:
    size = int.from_bytes(path.read_bytes()[:8], "little")
    found: dict[str, Any] = json.loads(json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"][KEY])
    return found


def changed(saved: Path, path: Path, arrays: dict[str, Any] | None = None, **values: Any) -> Path:
    """The file with other arrays and other values in its header; a value of ... is left out."""
    text = {**header(saved), **values}
    text = {name: value for name, value in text.items() if value is not ...}
    found = {**load_file(saved), **(arrays or {})}
    found = {name: np.asarray(value) for name, value in found.items() if value is not ...}
    save_file(found, path, {KEY: json.dumps(text)})
    return path


def wrong_parameter(saved: Path) -> dict[str, Any]:
    return {**header(saved)["parameters"], "n_cluster": 2}


def diagnostics(saved: Path, **values: Any) -> dict[str, Any]:
    return {**header(saved)["diagnostics"], **values}


WRONG: list[tuple[Callable[[Path], dict[str, Any]], str]] = [
    (lambda saved: {"format": 2}, "format: Input should be 1"),
    (lambda saved: {"format": ...}, "format: "),
    (lambda saved: {"colour": 1}, "colour: Extra inputs are not permitted"),
    (lambda saved: {"sites": ...}, "sites: Field required"),
    (lambda saved: {"estimator": "ClusteredRegressor"}, "holds a ClusteredRegressor, not a ClusteredClassifier"),
    (lambda saved: {"parameters": wrong_parameter(saved)}, "parameters must be fit_intercept, max_byzantine, "),
    (lambda saved: {"classes": None}, "classes: are for a classifier, which must have them"),
    (lambda saved: {"classes": {"dtype": "str", "values": ["no"]}}, "classes must hold at least two classes"),
    (lambda saved: {"classes": {"dtype": "str", "values": ["no", "no"]}}, "classes: a value appears twice"),
    (lambda saved: {"classes": {"dtype": "str", "values": ["a", "b", "c"]}}, "coef_ must have shape (2, 3, 3)"),
    (lambda saved: {"classes": {"dtype": "<i8", "values": ["a", "b"]}}, "classes: "),
    (lambda saved: {"classes": {"dtype": "<i8", "values": [0.5, 1]}}, "classes: the values are not of the type <i8"),
    (lambda saved: {"classes": {"dtype": "<U99", "values": ["a", "b"]}}, "<U99 is no type of names"),
    (lambda saved: {"classes": {"dtype": "V9", "values": ["a", "b"]}}, "V9 is no type of names"),
    (lambda saved: {"classes": {"dtype": "i8,(", "values": [1, 2]}}, "classes: "),
    (lambda saved: {"sites": {"dtype": "str", "values": []}}, "must have at least one site, one cluster"),
    (lambda saved: {"sites": {"dtype": "str", "values": ["a"]}}, "site_coef_ must have shape (1, 1, 3) in float64"),
    (lambda saved: {"sites": {"dtype": "str", "values": [["a"]]}}, "sites.values.0"),
    (lambda saved: {"features": 2}, "coef_ must have shape (2, 1, 2) in float64, got (2, 1, 3)"),
    (lambda saved: {"features": -1}, "must have at least one site, one cluster"),
    (lambda saved: {"features": True}, "features: Input should be a valid integer"),
    (lambda saved: {"feature_names": {"dtype": "str", "values": ["a"]}}, "feature_names must be 3 strings"),
    (lambda saved: {"feature_names": {"dtype": "<i8", "values": [1, 2, 3]}}, "feature_names must be 3 strings"),
    (lambda saved: {"reasons": []}, "reasons must have one text per site (12), got 0"),
    (lambda saved: {"membership": {}}, "membership must have exactly the keys"),
    (lambda saved: {"membership": membership_of_one()}, "membership must be of 2 clusters"),
    (lambda saved: {"diagnostics": {}}, "diagnostics must have exactly the keys"),
    (lambda saved: {"diagnostics": diagnostics(saved, empty=[0.5])}, "diagnostics: empty must not be [0.5]"),
    (lambda saved: {"diagnostics": diagnostics(saved, outliers=True)}, "diagnostics: outliers must not be"),
    (lambda saved: {"diagnostics": diagnostics(saved, left_out=None)}, "diagnostics: left_out must not be"),
    (lambda saved: {"arrays": {"coef_": ...}}, "must hold the arrays cluster_weights_, coef_, intercept_, "),
    (lambda saved: {"arrays": {"more": np.zeros(2)}}, "must hold the arrays"),
    (lambda saved: {"arrays": {"coef_": np.zeros(())}}, "must have at least one site, one cluster"),
    (lambda saved: {"arrays": {"coef_": np.zeros((0, 1, 3))}}, "must have at least one site"),
    (lambda saved: {"arrays": {"coef_": np.zeros((2, 1, 3), "f4")}}, "got (2, 1, 3) in float32"),
    (lambda saved: {"arrays": {"labels_": np.full(12, 2)}}, "labels_ must be from -1 to 1"),
    (lambda saved: {"arrays": {"labels_": np.zeros(12)}}, "labels_ must have shape (12,) in int64"),
    (lambda saved: {"arrays": {"cluster_weights_": np.array([2.0, -1.0])}}, "cluster_weights_ must be at least 0"),
    (lambda saved: {"arrays": {"cluster_weights_": np.array([np.nan, 1.0])}}, "cluster_weights_ must be at least 0"),
]  # fmt: skip


def membership_of_one() -> dict[str, Any]:
    X, y, _ = numbers()
    found = ct.fit({"a": (X, y)}, clusters=1, rounds=1).membership
    assert found is not None
    return found.as_dict()


@pytest.mark.parametrize(("change", "expected"), WRONG)
def test_a_wrong_file_is_one_line(
    change: Callable[[Path], dict[str, Any]], expected: str, saved: Path, tmp_path: Path
) -> None:
    path = changed(saved, tmp_path / "wrong", **change(saved))
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        ClusteredClassifier.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_an_unchanged_file_is_right(saved: Path, tmp_path: Path) -> None:
    assert_same(ClusteredClassifier.load(saved), ClusteredClassifier.load(changed(saved, tmp_path / "same")))


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\xff" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_what_is_no_such_file_is_one_line(content: bytes, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"(cannot be read as a saved estimator|is no saved estimator)[^\n]*$"):
        ClusteredClassifier.load(path)
    whole = saved.read_bytes()
    path.write_bytes(whole[: len(whole) - 7])
    with pytest.raises(ValueError, match=r"cannot be read as a saved estimator[^\n]*$"):
        ClusteredClassifier.load(path)
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ValueError, match=r"cannot be read as a saved estimator[^\n]*$"):
            ClusteredClassifier.load(missing)
    save_file({"coef_": np.zeros(2)}, path, {KEY: "{"})
    with pytest.raises(ValueError, match=r"^[^\n]*header: Invalid JSON[^\n]*$"):
        ClusteredClassifier.load(path)
