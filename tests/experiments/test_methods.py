"""The methods by name, and the options that build them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie._src.aggregators import (
    Bucketing,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    SpectralFilter,
    TrimmedMean,
)
from coterie._src.algorithms import ClusteredDescent, LocalMinimisers, Oracle, ThreeStage
from coterie._src.experiments import run_trial
from coterie._src.experiments.method_setting import max_byzantine_count, optimiser, projection
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.setup import draw_trial
from coterie._src.optimisers import Adam, Momentum, PlainSteps
from coterie._src.projections import Box, L2Ball, Unconstrained, UnitSphere
from small_trials import small


@pytest.mark.parametrize("before", ["mixing", "bucketing"])
def test_steps_before_a_rule(before: str) -> None:
    """They change the numbers, run again bit for bit, and leave the recommended method alone."""
    plain, first, second = (
        run_trial(small(f"algorithm.before={name}", "run.methods=['coterie', 'brifca-median', 'ifca']"), 0)
        for name in ("nothing", before, before)
    )
    for method in ("brifca-median", "ifca"):
        assert np.array_equal(first.methods[method].centres, second.methods[method].centres)
        assert not np.array_equal(first.methods[method].centres, plain.methods[method].centres)
    assert np.array_equal(first.methods["coterie"].centres, plain.methods["coterie"].centres)


def test_rules_and_algorithms_by_name() -> None:
    setup = draw_trial(small("algorithm.trim=0.2", "algorithm.max_byzantine=0.1", "algorithm.init=warm"), 0)
    setting = setup.setting(np.random.default_rng(0))
    rules = {
        "coterie": SpectralFilter(3),  # a tenth of 24, rounded up
        "brifca-median": Median(),
        "brifca-trimmed": TrimmedMean(0.2),
        "brifca-krum": Krum(0.2, selected=0.5),
        "brifca-filter": SpectralFilter(3),
        "brifca-no-regret": SpectralFilter(3, "no-regret"),
        "ifca": Mean(),
        "three-stage": TrimmedMean(0.2),
        "oracle": Mean(),
    }
    for name, rule in rules.items():
        assert METHODS[name].aggregator(setting) == rule, name
    kinds = {"three-stage": ThreeStage, "local": LocalMinimisers, "oracle": Oracle}
    for method in METHODS:
        assert isinstance(method.algorithm(setting), kinds.get(method.name, ClusteredDescent)), method.name
    all_clients = draw_trial(small("algorithm.ifca_divisor=all"), 0).setting(np.random.default_rng(0))
    assert METHODS["ifca"].aggregator(all_clients) == Mean(24)


def test_steps_before_a_rule_wrap_it() -> None:
    rng = np.random.default_rng(0)
    mixing = draw_trial(small("algorithm.before=mixing", "algorithm.trim=0.2"), 0).setting(rng)
    bucketing = draw_trial(small("algorithm.before=bucketing"), 0).setting(rng)
    assert METHODS["brifca-median"].aggregator(mixing) == NearestNeighbourMixing(Median(), 0.2)
    found = METHODS["brifca-median"].aggregator(bucketing)
    assert isinstance(found, Bucketing)
    assert (found.rule, found.size) == (Median(), 2)
    for name in ("coterie", "oracle"):
        assert METHODS[name].aggregator(mixing) == METHODS[name].rule(mixing)


def test_projections_and_optimisers_by_name() -> None:
    for name, expected in (("none", Unconstrained()), ("l2-ball", L2Ball(2.0)), ("box", Box(2.0))):
        assert projection(small(f"algorithm.project={name}", "algorithm.radius=2.0").algorithm) == expected
    for name, moves in (("plain", PlainSteps()), ("momentum", Momentum(0.8)), ("adam", Adam(0.8))):
        assert optimiser(small(f"algorithm.optimiser={name}", "algorithm.momentum=0.8").algorithm) == moves
    stages = draw_trial(small("three_stage.project=unit-sphere"), 0).setting(np.random.default_rng(0))
    algorithm = METHODS["three-stage"].algorithm(stages)
    assert isinstance(algorithm, ThreeStage)
    assert algorithm.descent.server.project == UnitSphere()


def test_a_bound_is_a_share_rounded_up_or_a_count_and_never_half() -> None:
    assert max_byzantine_count(0.05, 18) == 1
    assert max_byzantine_count(0.05, 40) == 2
    assert max_byzantine_count(0.05, 41) == 3
    assert max_byzantine_count(3, 41) == 3
    assert max_byzantine_count(0.49, 10) == 4
    assert max_byzantine_count(0.0, 10) == 0


def test_what_needs_the_truth_says_so() -> None:
    blind = replace(draw_trial(small(), 0).setting(np.random.default_rng(0)), truth=None)
    with pytest.raises(ValueError, match=r"run\.methods: oracle needs the truth"):
        METHODS["oracle"].algorithm(blind)
