"""The suite that scikit-learn has for its own estimators."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from coterie.sklearn import ClusteredClassifier, ClusteredRegressor


@pytest.mark.filterwarnings("ignore:groups. none are given:UserWarning")  # the suite knows no groups
@parametrize_with_checks(
    [
        ClusteredRegressor(),
        ClusteredRegressor("auto", personalise="none", unknown="global"),
        ClusteredRegressor(1, fit_intercept=False, method="global"),
        ClusteredClassifier(max_rounds=30),  # one site has no end to its rounds before the last
        ClusteredClassifier(1, personalise="none", method="brifca-median", max_rounds=30),
    ]
)
def test_the_checks_of_scikit_learn_hold_without_an_exception(estimator: Any, check: Any) -> None:
    check(estimator)
