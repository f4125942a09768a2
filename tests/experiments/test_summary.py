"""From trials to means, standard errors and shares with their intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from coterie._src.experiments.summary import share, statistic


def test_statistics() -> None:
    assert statistic([1.0, 3.0]) == {"mean": 2.0, "se": 1.0, "trials": 2}
    assert statistic([5.0]) == {"mean": 5.0, "se": None, "trials": 1}
    assert statistic([1.0, float("nan")])["mean"] is None
    assert statistic([1.0, float("inf")])["mean"] is None
    assert statistic([1e300, 3e300]) == {"mean": 2e300, "se": None, "trials": 2}


@given(st.integers(1, 300), st.data())
def test_a_share_has_wilson_s_interval(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    interval = binomtest(hits, trials).proportion_ci(method="wilson")
    assert share(hits, trials) == pytest.approx((hits / trials, interval.low, interval.high), abs=1e-6)
