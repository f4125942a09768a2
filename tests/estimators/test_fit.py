"""The estimators are `ct.fit`: sites from groups, classes by any labels, the right model for every row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import coterie as ct
from coterie.sklearn import ClusteredClassifier, ClusteredRegressor
from estimators.sites import SITES, Rows, classes, in_turn, numbers

KNOWN: dict[str, Any] = {"n_clusters": 2, "random_state": 3}


def by_site(rows: Rows, codes: Any = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    targets = rows.y if codes is None else codes
    return {name: (rows.X[rows.site == name], targets[rows.site == name]) for name in np.unique(rows.site)}


# --- the same as ct.fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("personalise", ["shrink", "none"])
def test_a_regressor_is_a_fit_of_all_samples(personalise: str) -> None:
    rows = numbers()
    model = ClusteredRegressor(**KNOWN, personalise=personalise).fit(*rows)
    result = ct.fit(by_site(rows), "linear", 2, seed=3, holdout=0, personalise=personalise)
    assert in_turn(model.labels_)
    assert model.sites_.tolist() == list(result.names)
    assert np.array_equal(model.labels_, result.labels)
    assert np.array_equal(np.column_stack([model.coef_, model.intercept_]), result.centres)
    assert (model.n_clusters_, model.n_features_in_, model.n_iter_) == (2, 3, result.metrics["rounds"])
    assert repr(model.diagnostics_) == repr(result.diagnostics)
    for name in result.names:
        x = rows.X[rows.site == name]
        expected = result.predict(x, client=name)
        np.testing.assert_allclose(model.predict(x, groups=[name] * len(x)), expected, rtol=1e-12)
    for cluster in (0, 1):
        expected = result.predict(rows.X, cluster=cluster)
        np.testing.assert_allclose(model.predict(rows.X, cluster=cluster), expected, rtol=1e-12)


@pytest.mark.parametrize("labels", [["no", "yes"], [3, 1, 2], np.array(["b", "a", "c"], dtype=object), [False, True]])
def test_a_classifier_is_a_fit_of_the_numbers_of_its_classes(labels: Any) -> None:
    rows = classes(labels)
    model = ClusteredClassifier(**KNOWN).fit(*rows)
    assert in_turn(model.labels_)
    assert model.classes_.tolist() == sorted(np.asarray(labels).tolist())
    assert model.score(*rows) > 0.75
    codes = np.searchsorted(model.classes_, rows.y).astype(float)
    result = ct.fit(by_site(rows, codes), "softmax" if len(labels) > 2 else "logistic", 2, seed=3, holdout=0)
    outputs = len(labels) if len(labels) > 2 else 1
    assert model.coef_.shape == (2, outputs, 3)
    assert model.intercept_.shape == (2, outputs)
    weights = np.concatenate([model.coef_.swapaxes(1, 2), model.intercept_[:, None]], axis=1)
    assert np.array_equal(weights.reshape(2, -1), result.centres)
    for name in result.names:
        x = rows.X[rows.site == name]
        found = model.predict(x, [name] * len(x))
        assert found.dtype == model.classes_.dtype
        assert np.array_equal(found, model.classes_[result.predict(x, client=name).astype(int)])


@pytest.mark.parametrize("labels", [["no", "yes"], ["a", "b", "c"]])
def test_probabilities_are_those_of_the_models(labels: list[str]) -> None:
    rows = classes(labels)
    model = ClusteredClassifier(**KNOWN).fit(*rows)
    x, j = rows.X[:7], 1
    scores = x @ model.coef_[j].T + model.intercept_[j]
    if len(labels) == 2:
        scores = np.column_stack([np.zeros(7), scores])
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(x, cluster=j), expected, rtol=1e-10)
    assert np.array_equal(model.predict(x, cluster=j), model.classes_[expected.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_proba(*rows[::2]).sum(axis=1), 1.0)


def test_without_an_intercept_there_is_none() -> None:
    rows = numbers()
    model = ClusteredRegressor(**KNOWN, fit_intercept=False).fit(*rows)
    result = ct.fit(by_site(rows), "linear", 2, seed=3, holdout=0, intercept=False)
    assert np.array_equal(model.coef_, result.centres)
    assert not model.intercept_.any()
    assert not model.site_intercept_.any()


def test_methods_and_options_are_those_of_fit() -> None:
    rows = numbers()
    options = {"init": "spectral", "trim": 0.2}
    model = ClusteredRegressor(**KNOWN, method="brifca-trimmed", max_rounds=7, options=options).fit(*rows)
    result = ct.fit(by_site(rows), clusters=2, method="brifca-trimmed", seed=3, holdout=0, rounds=7, **options)
    assert np.array_equal(np.column_stack([model.coef_, model.intercept_]), result.centres)
    assert model.n_iter_ == 7
    for method in ("local", "global", "three-stage"):
        assert ClusteredRegressor(**KNOWN, method=method).fit(*rows).score(*rows) > (-1 if method == "global" else 0.9)


def test_the_number_of_clusters_can_be_found() -> None:
    assert ClusteredRegressor("auto", random_state=0).fit(*numbers()).n_clusters_ == 2


def test_a_random_state_is_a_number_a_generator_or_nothing() -> None:
    rows = numbers()

    def drawn(state: Any) -> int:
        return ClusteredRegressor(random_state=state)._seed()

    assert drawn(5) == drawn(np.int64(5)) == 5
    assert drawn(np.random.RandomState(5)) == drawn(np.random.RandomState(5)) != drawn(np.random.RandomState(6))
    generator = np.random.RandomState(5)
    assert drawn(generator) != drawn(generator)
    np.random.seed(1)
    first = drawn(None)
    assert drawn(None) != first
    np.random.seed(1)
    assert drawn(None) == first
    assert in_turn(ClusteredRegressor(2).fit(*rows).labels_)


# --- sites ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "named",
    [
        list,
        pd.Series,
        pl.Series,
        lambda site: pd.Series(site).astype("category"),
        lambda site: np.array([int(name[-2:]) for name in site]),
        lambda site: pd.Series([float(name[-2:]) for name in site]),
        lambda site: pl.Series([int(name[-2:]) for name in site]),
    ],
)
def test_groups_may_be_of_any_kind(named: Callable[[np.ndarray], Any]) -> None:
    rows = numbers()
    expected = ClusteredRegressor(**KNOWN).fit(*rows)
    groups = named(rows.site)
    found = ClusteredRegressor(**KNOWN).fit(rows.X, rows.y, groups)
    assert len(found.sites_) == SITES
    assert found.score(rows.X, rows.y, groups) == pytest.approx(expected.score(*rows), rel=1e-6)


def test_rows_may_come_in_any_order() -> None:
    rows = numbers()
    order = np.random.default_rng(0).permutation(len(rows.y))
    shuffled = Rows(*(part[order] for part in rows))
    one, other = ClusteredRegressor(**KNOWN).fit(*rows), ClusteredRegressor(**KNOWN).fit(*shuffled)
    np.testing.assert_allclose(one.site_coef_, other.site_coef_, rtol=1e-8)
    np.testing.assert_allclose(one.predict(rows.X, rows.site)[order], other.predict(shuffled.X, shuffled.site))


def test_a_known_site_has_its_own_model_or_that_of_its_cluster() -> None:
    rows = numbers()
    shrunk, plain = (ClusteredRegressor(**KNOWN, personalise=how).fit(*rows) for how in ("shrink", "none"))
    assert np.array_equal(shrunk.coef_, plain.coef_)
    assert np.array_equal(plain.site_coef_, plain.coef_[plain.labels_])
    assert not np.array_equal(shrunk.site_coef_, plain.site_coef_)
    assert len(np.unique(shrunk.site_coef_[:, 0])) == SITES
    for model in (shrunk, plain):
        expected = rows.X[40] @ model.site_coef_[1] + model.site_intercept_[1]
        assert model.predict(rows.X[40:41], [rows.site[40]]) == pytest.approx(expected)


def test_an_unknown_site_is_an_error_or_the_mean_of_the_clusters() -> None:
    rows = numbers()
    keep = ~np.isin(rows.site, ["site 01", "site 03"])  # six sites of one kind, four of the other
    rows = Rows(*(part[keep] for part in rows))
    model = ClusteredRegressor(**KNOWN, max_byzantine=0.1).fit(*rows)
    shares = np.bincount(model.labels_) / 10
    assert sorted(shares) == [0.4, 0.6]
    np.testing.assert_allclose(model.cluster_weights_, shares)
    x, groups = rows.X[:2], ["site 01", "site 00"]
    with pytest.raises(ValueError, match=r"^groups: site 'site 01' was not in the fit; assign"):
        model.predict(x, groups)
    with pytest.raises(ValueError, match=r"^groups: the fit has 10 sites; give the site of every row"):
        model.predict(x)
    model.set_params(unknown="global")
    by_cluster = [model.predict(x, cluster=j) for j in range(2)]
    found = model.predict(x, groups)
    assert found[0] == pytest.approx(shares @ [one[0] for one in by_cluster])
    assert found[1] == model.set_params(unknown="raise").predict(x[1:], ["site 00"])
    np.testing.assert_allclose(model.set_params(unknown="global").predict(x), shares @ by_cluster)


def test_unknown_sites_have_the_mean_of_the_probabilities() -> None:
    rows = classes(["no", "yes"])
    model = ClusteredClassifier(**KNOWN, unknown="global").fit(*rows)
    x = rows.X[:5]
    expected = sum(model.cluster_weights_[j] * model.predict_proba(x, cluster=j) for j in range(2))
    np.testing.assert_allclose(model.predict_proba(x, ["new"] * 5), expected)


def test_clusters_that_may_be_byzantine_do_not_count_in_the_mean() -> None:
    X, y, site = numbers()
    alone = site == "site 00"
    y = np.where(alone, 1e6 * X[:, 0], y)
    model = ClusteredRegressor(3, max_byzantine=0.05, random_state=0, unknown="global").fit(X, y, site)
    own = model.labels_[0]
    assert (model.labels_ == own).sum() == 1
    assert model.cluster_weights_[own] == 0
    assert np.abs(model.predict(X[:9])).max() < 10


def test_one_site_needs_no_name() -> None:
    X, y, site = numbers()
    first = site == "site 00"
    with pytest.warns(UserWarning, match=r"^groups: none are given, so all rows count as one site"):
        model = ClusteredRegressor(2).fit(X[first], y[first])
    assert (model.n_clusters_, model.sites_.tolist(), model.labels_.tolist()) == (1, [0], [0])
    quiet = ClusteredRegressor(1).fit(X[first], y[first])
    oracle = np.linalg.lstsq(np.column_stack([X[first], np.ones(30)]), y[first], rcond=None)[0]
    np.testing.assert_allclose([*quiet.coef_[0], *quiet.intercept_], oracle, rtol=1e-4)
    named = ClusteredRegressor("auto").fit(X[first], y[first], site[first])
    assert named.predict(X[:2]) == pytest.approx(quiet.predict(X[:2]), rel=1e-4)


# --- columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_have_named_columns(frame: Any) -> None:
    rows = numbers()
    X = frame({name: rows.X[:, i] for i, name in enumerate(["age", "dose", "bmi"])})
    model = ClusteredRegressor(**KNOWN).fit(X, rows.y, rows.site)
    assert model.feature_names_in_.tolist() == ["age", "dose", "bmi"]
    expected = ClusteredRegressor(**KNOWN).fit(*rows)
    assert np.array_equal(model.predict(X, rows.site), expected.predict(rows.X, rows.site))
    assert not hasattr(expected, "feature_names_in_")
    for call in (lambda x: model.predict(x, rows.site), lambda x: model.assign(x, rows.y)):
        with pytest.raises(ValueError, match="Feature names must be in the same order"):
            call(X[["dose", "age", "bmi"]])


# --- new sites --------------------------------------------------------------------------------------------


def test_assign_finds_the_cluster_of_new_samples_and_changes_nothing() -> None:
    rows, new = numbers(), numbers(seed=1)
    model = ClusteredRegressor(**KNOWN).fit(*rows)
    before = model.predict(rows.X, rows.site)
    for site in ("site 00", "site 01"):
        x, y = new.X[new.site == site], new.y[new.site == site]
        cluster = model.assign(x, y)
        assert cluster == model.labels_[model.sites_ == site][0]
        assert np.mean((model.predict(x, cluster=cluster) - y) ** 2) < 0.2
        assert model.assign(x, y + 20) == -1
        assert model.assign(x, y + 20, nearest=True) in (0, 1)
    assert np.array_equal(model.predict(rows.X, rows.site), before)
    with pytest.raises(ValueError, match=r"^groups: the fit has 12 sites"):
        model.predict(x)
    with pytest.raises(ValueError, match="contains NaN"):
        model.assign(np.full((2, 3), np.nan), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"^y holds a value that is not a finite number$"):
        model.assign(x[:2], [1.0, np.nan])


def test_assign_takes_the_labels_of_the_classes() -> None:
    rows, new = classes(["b", "a", "c"]), classes(["b", "a", "c"], seed=1)
    model = ClusteredClassifier(**KNOWN).fit(*rows)
    for site in ("site 00", "site 01"):
        x, y = new.X[new.site == site], new.y[new.site == site]
        assert model.assign(x, y) == model.labels_[model.sites_ == site][0]
    with pytest.raises(ValueError, match=r"^y must hold classes of the fit, got 'd'$"):
        model.assign(x[:2], ["a", "d"])


# --- suspicion --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_a_poisoned_site_is_the_most_suspicious(kind: str) -> None:
    X, y, site = numbers() if kind == "regressor" else classes(["no", "yes"])
    poisoned = site == "site 05"
    y = y.copy()
    y[poisoned] = np.random.default_rng(0).permutation(y[poisoned])
    model = (ClusteredRegressor if kind == "regressor" else ClusteredClassifier)(**KNOWN).fit(X, y, site)
    found = model.suspicion_
    assert isinstance(found, pd.DataFrame)
    assert found.columns.tolist() == ["site", "cluster", "score", "reasons"]
    assert sorted(found["site"]) == model.sites_.tolist()
    assert found["site"][0] == "site 05"
    assert found["score"][0] > 2 > found["score"][1]
    assert found["score"].is_monotonic_decreasing
    assert "times the usual one of cluster" in found["reasons"][0]
    assert set(found["reasons"][1:]) == {""}
    by_site = dict(zip(model.sites_, model.labels_, strict=True))
    assert found["cluster"].to_list() == [by_site[name] for name in found["site"]]


@pytest.mark.parametrize("method", ["coterie", "local"])  # without clusters there are no scores
def test_without_pandas_the_ranking_is_a_frame_of_polars_or_arrays(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, site = numbers()
    y = np.where(site == "site 05", np.random.default_rng(0).permutation(y), y)
    model = ClusteredRegressor(**KNOWN, method=method).fit(X, y, site)
    wanted = {name: column.tolist() for name, column in model.suspicion_.items()}
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = model.suspicion_
    assert isinstance(found, pl.DataFrame)
    assert found.schema == {"site": pl.String, "cluster": pl.Int64, "score": pl.Float64, "reasons": pl.String}
    assert repr(found.to_dict(as_series=False)) == repr(wanted)  # a score may be NaN
    monkeypatch.setitem(sys.modules, "polars", None)
    assert repr({name: column.tolist() for name, column in model.suspicion_.items()}) == repr(wanted)


def test_before_the_fit_there_is_no_ranking() -> None:
    with pytest.raises(AttributeError, match=r"^ClusteredRegressor is not fitted and has no suspicion_$"):
        ClusteredRegressor().suspicion_  # noqa: B018


def test_a_cluster_no_larger_than_the_bound_is_suspicious() -> None:
    X, y, site = numbers()
    y = np.where(site == "site 00", 1e3 * X[:, 0], y)
    model = ClusteredRegressor(3, random_state=0).fit(X, y, site)
    own = model.labels_[0]
    assert model.suspicion_["site"][0] == "site 00"
    assert f"cluster {own} has no more members (1) than may be Byzantine (1)" in model.suspicion_["reasons"][0]
    assert model.suspicion_["score"][0] > 5  # by the loss at the clusters of the others


def test_at_most_one_in_a_hundred_honest_sites_is_named() -> None:
    """Of 20 fits of 12 sites, plus three standard errors of 0.64 %."""
    found = [ClusteredRegressor(2, personalise="none", random_state=0).fit(*numbers(seed)) for seed in range(20)]
    assert np.mean([reason != "" for model in found for reason in model.suspicion_["reasons"]]) < 0.03


# --- mistakes ---------------------------------------------------------------------------------------------

ROWS = numbers()
CLASSES = classes(["no", "yes"])


def fitted(**options: Any) -> Any:
    return ClusteredRegressor(**{**KNOWN, **options}).fit(*ROWS)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: fitted(n_clusters=0), 'n_clusters must be "auto" or a whole number from 1 to the number of clients'),
        (lambda: fitted(n_clusters=13), "n_clusters must be"),
        (lambda: fitted(n_clusters="many"), "n_clusters must be"),
        (lambda: fitted(max_byzantine=0.5), "max_byzantine: must be 'auto' or less than 0.5, got 0.5"),
        (lambda: fitted(max_rounds=-1), "max_rounds: must be greater than or equal to 0, got -1"),
        (lambda: fitted(method="coteri"), "did you mean coterie?"),
        (lambda: fitted(method=ct.Median()), "method must be the name of a method, got Median()"),
        (lambda: fitted(method="oracle"), "method: oracle needs a Federation with a truth"),
        (lambda: fitted(personalise="yes"), "personalise: must be 'none' or 'shrink'"),
        (lambda: fitted(unknown="ignore"), "unknown must be \"raise\" or \"global\", got 'ignore'"),
        (lambda: fitted(options=["trim"]), "options must be None or a mapping from names to values, got ['trim']"),
        (lambda: fitted(options={"trimm": 0.1}), "options: trimm: unknown option; did you mean trim?"),
        (lambda: fitted(options={"rounds": 3}), "options: rounds: unknown option; use max_rounds"),
        (lambda: fitted(options={"attack": 3}), "options: attack: unknown option"),
        (lambda: fitted(random_state=-1), "between 0 and 2**32 - 1"),
        (lambda: fitted().fit(ROWS.X, ROWS.y, ROWS.site[1:]), "groups must name the site of every row (360), got 359"),
        (
            lambda: fitted().fit(ROWS.X[:3], ROWS.y[:3], ["a", None, "b"]),
            "groups: row 1 must name a site by a string or a number, got None",
        ),
        (
            lambda: fitted().fit(ROWS.X[:3], ROWS.y[:3], pd.Series([1.0, 2.0, np.nan])),
            "groups: row 2 must name a site by a string or a number, got nan",
        ),
        (
            lambda: fitted().fit(ROWS.X[:2], ROWS.y[:2], np.array([1, "a"], dtype=object)),
            "groups must hold strings or numbers, and not both",
        ),
        (
            lambda: fitted().fit(ROWS.X[:2], ROWS.y[:2], np.array([1, pd.NA], dtype=object)),
            "groups: row 1 must name a site by a string or a number, got <NA>",
        ),
        (lambda: fitted().fit(ROWS.X, ROWS.y, "school"), "groups must be a column with the site of every row, got"),
        (
            lambda: ClusteredRegressor(1).fit(ROWS.X[:9], ROWS.y[:9], [7] * 9).predict(ROWS.X[:1], ["7"]),
            "groups: site '7' was not in the fit, which has 7",
        ),
        (lambda: fitted().predict(ROWS.X, ROWS.site, cluster=0), "predict: name groups or a cluster, and not both"),
        (lambda: fitted().predict(ROWS.X, cluster=2), "cluster must be a whole number from 0 to 1, got 2"),
        (lambda: fitted().predict(ROWS.X, cluster=True), "cluster must be a whole number from 0 to 1, got True"),
        (lambda: fitted().predict(ROWS.X, cluster=0.5), "cluster must be a whole number from 0 to 1, got 0.5"),
        (
            lambda: ClusteredClassifier().fit(CLASSES.X, ["yes"] * len(CLASSES.X), CLASSES.site),
            "y must hold at least two classes, got one class: 'yes'",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_parameter(call: Callable[[], object], expected: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        call()
    assert expected in str(caught.value)


def test_what_is_not_fitted_says_so() -> None:
    for call in (
        lambda: ClusteredRegressor().predict(ROWS.X),
        lambda: ClusteredClassifier().predict_proba(ROWS.X),
        lambda: clone(fitted()).assign(ROWS.X, ROWS.y),
    ):
        with pytest.raises(NotFittedError):
            call()
