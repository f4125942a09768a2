"""The estimators in scikit-learn's tools: pipelines, searches, cross-validation, clones, metadata routing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from coterie.sklearn import ClusteredClassifier, ClusteredRegressor
from estimators.sites import classes, in_turn, numbers

FOLDS = KFold(3, shuffle=True, random_state=0)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def scaled(estimator: Any) -> Pipeline:
    return make_pipeline(StandardScaler(), estimator)


def test_a_clone_has_the_parameters_and_nothing_else() -> None:
    options = {"trim": 0.1}
    model = ClusteredRegressor(3, max_byzantine=0.1, unknown="global", options=options, random_state=4)
    other = clone(model.fit(*numbers()))
    assert other.get_params() == model.get_params()
    assert {name for name in vars(other) if name.endswith("_")} == set()
    assert other.set_params(n_clusters="auto").n_clusters == "auto"
    assert model.n_clusters == 3


def test_a_pipeline_takes_the_sites_of_its_last_step() -> None:
    X, y, site = numbers()
    pipe = scaled(ClusteredRegressor(random_state=0)).fit(X, y, clusteredregressor__groups=site)
    assert in_turn(pipe[-1].labels_)
    alone = ClusteredRegressor(random_state=0).fit(pipe[0].transform(X), y, site)
    assert np.array_equal(pipe.predict(X, groups=site), alone.predict(pipe[0].transform(X), site))


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_pipeline_may_hand_over_frames(library: str) -> None:
    frames = pytest.importorskip(library)
    X, y, site = numbers()
    table = frames.DataFrame(dict(zip("abc", X.T, strict=True)))
    pipe = scaled(ClusteredRegressor(random_state=0)).set_output(transform=library).fit(table, y, groups=site)
    assert pipe[-1].feature_names_in_.tolist() == ["a", "b", "c"]
    assert pipe.score(table, y, groups=site) > 0.9


@pytest.mark.usefixtures("routing")
def test_a_search_over_sites_may_hand_over_frames() -> None:
    """A scaler in the pipeline gives frames; every site is in one part of the rows, and the names reach each fit."""
    pd = pytest.importorskip("pandas")
    X, y, site = numbers()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    scaler = StandardScaler().set_output(transform="pandas")
    steps = [("scale", scaler), ("model", ClusteredRegressor(unknown="global", random_state=0))]
    grid = {"model__n_clusters": [1, 2], "model__personalise": ["none", "shrink"]}
    search = GridSearchCV(Pipeline(steps), grid, cv=GroupKFold(3), error_score="raise").fit(table, y, groups=site)
    best = search.best_estimator_
    assert best["model"].feature_names_in_.tolist() == ["a", "b", "c"]
    assert best["model"].suspicion_["site"].nunique() == len(best["model"].sites_)
    plain = GridSearchCV(
        Pipeline([("scale", StandardScaler()), steps[1]]), grid, cv=GroupKFold(3), error_score="raise"
    ).fit(X, y, groups=site)
    for name in ("mean_test_score", "split2_test_score"):
        assert np.allclose(search.cv_results_[name], plain.cv_results_[name])
    with pytest.raises(ValueError, match="feature names"):
        best.predict(table[["c", "b", "a"]], groups=site)


@pytest.mark.usefixtures("routing")
def test_rows_held_out_choose_the_number_of_clusters() -> None:
    """With rows of every site in every part, two clusters are far better than one, and a third has nothing to add."""
    X, y, site = numbers()
    search = GridSearchCV(
        scaled(ClusteredRegressor(personalise="none", random_state=0)),
        {"clusteredregressor__n_clusters": [1, 2]},
        cv=FOLDS,
    )
    search.fit(X, y, groups=site)
    assert search.best_params_ == {"clusteredregressor__n_clusters": 2}
    one, two = search.cv_results_["mean_test_score"]
    assert one < 0.1
    assert two > 0.95
    assert search.score(X, y, groups=site) == search.best_estimator_.score(X, y, groups=site) > 0.95


@pytest.mark.usefixtures("routing")
def test_sites_held_out_are_unknown_ones() -> None:
    X, y, site = numbers()
    folds = GroupKFold(3)
    grid = {"clusteredregressor__n_clusters": [1, 2]}
    search = GridSearchCV(scaled(ClusteredRegressor(unknown="global", random_state=0)), grid, cv=folds)
    search.fit(X, y, groups=site)
    for k, found in zip((1, 2), search.cv_results_["split0_test_score"], strict=True):
        train, test = next(folds.split(X, y, site))
        pipe = scaled(ClusteredRegressor(k, unknown="global", random_state=0)).fit(
            X[train], y[train], groups=site[train]
        )
        assert not set(site[test]) & set(pipe[-1].sites_)
        assert found == pipe.score(X[test], y[test], groups=site[test])
    strict = GridSearchCV(ClusteredRegressor(random_state=0), {"n_clusters": [2]}, cv=folds, error_score="raise")
    with pytest.raises(ValueError, match=r"^groups: site 'site .*' was not in the fit"):
        strict.fit(X, y, groups=site)


@pytest.mark.usefixtures("routing")
def test_cross_validation_hands_the_sites_to_fit_and_score() -> None:
    X, y, site = numbers()
    assert cross_val_score(ClusteredRegressor(random_state=0), X, y, cv=FOLDS, params={"groups": site}).min() > 0.9
    X, y, site = classes(["no", "yes"])
    assert cross_val_score(ClusteredClassifier(random_state=0), X, y, cv=FOLDS, params={"groups": site}).min() > 0.75


def test_groups_that_do_not_arrive_are_noticed() -> None:
    """Without metadata routing a search hands groups to the splitter alone."""
    X, y, site = numbers()
    search = GridSearchCV(ClusteredRegressor(random_state=0), {"n_clusters": [2]}, cv=GroupKFold(3))
    with pytest.warns(UserWarning, match="groups: none are given, so all rows count as one site"):
        search.fit(X, y, groups=site)


def test_sample_weights_of_a_score() -> None:
    X, y, site = numbers()
    model = ClusteredRegressor(random_state=0).fit(X, y, site)
    weights = (site == "site 00").astype(float)
    first = site == "site 00"
    assert model.score(X, y, site, sample_weight=weights) == pytest.approx(model.score(X[first], y[first], site[first]))
