"""What is public: few names, all documented, nothing else; the names of the version before still work."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
import coterie.callbacks
import coterie.federation
import coterie.sklearn
from coterie._src.deprecated import MODULES
from small_trials import small

NAMES = [name for name in coterie.__all__ if name != "__version__"]
PUBLIC_MODULES = {"callbacks", "federation", "sklearn"}
DOCUMENTED = [getattr(coterie, name) for name in NAMES] + [
    getattr(module, name)
    for module in (coterie.callbacks, coterie.sklearn, coterie.federation)
    for name in module.__all__
]
CONTRACTS = {"Algorithm", "Task"}
"""Protocols, which nobody calls."""


def sections(documented: Any) -> dict[str, str]:
    """The numpydoc sections of a docstring by their headings."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", inspect.getdoc(documented) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parameters(documented: Any) -> list[str]:
    """The parameters of a function, or those that make an object of a class."""
    if name_of(documented) in CONTRACTS or inspect.isabstract(documented):
        return []
    given = inspect.signature(documented).parameters.values()
    return [("**" if one.kind == one.VAR_KEYWORD else "") + one.name for one in given if not one.name.startswith("_")]


def name_of(documented: Any) -> str:
    return str(documented.__name__)


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )


def test_there_are_few_names_and_dir_shows_no_other() -> None:
    assert len(coterie.__all__) <= 30
    assert coterie.__all__ == sorted(coterie.__all__)
    assert dir(coterie) == sorted(coterie.__all__)
    for name in coterie.__all__:
        assert hasattr(coterie, name)
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'ffit'"):
        coterie.ffit  # noqa: B018
    exported: dict[str, Any] = {}
    exec("from coterie import *", exported)
    assert set(exported) - {"__builtins__"} == set(coterie.__all__)


def test_everything_else_is_private_by_name() -> None:
    modules = {found.name for found in pkgutil.iter_modules(coterie.__path__)}
    assert {name for name in modules if not name.startswith("_")} == PUBLIC_MODULES
    done = run(
        """
        import coterie
        [getattr(coterie, name) for name in coterie.__all__]
        print(*sorted(name for name in vars(coterie) if not name.startswith("_")))
        """
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(NAMES)


@pytest.mark.parametrize("documented", DOCUMENTED, ids=name_of)
def test_every_name_is_documented(documented: Any) -> None:
    text = inspect.getdoc(documented) or ""
    first = text.splitlines()[0]
    assert first.endswith((".", ";", ":")), first
    found = sections(documented)
    attributes = found.get("Parameters", "") + found.get("Attributes", "")
    for parameter in parameters(documented):
        assert re.search(rf"^([\w*]+, )*{re.escape(parameter)}(, \w+)* ?(:|$)", attributes, re.MULTILINE), parameter
    if name_of(documented) not in CONTRACTS:
        assert ">>> " in found.get("Examples", ""), "an example"
    if inspect.isfunction(documented):
        assert "Returns" in found


@pytest.mark.parametrize("documented", DOCUMENTED, ids=name_of)
def test_every_public_method_is_documented(documented: Any) -> None:
    if inspect.isclass(documented):
        for method, value in vars(documented).items():
            own = inspect.isfunction(value) and value.__qualname__ == f"{documented.__qualname__}.{method}"
            if not method.startswith("_") and (own or isinstance(value, property)):
                assert inspect.getdoc(getattr(documented, method)), method


# --- the version before -----------------------------------------------------------------------------------

README = """
import numpy as np
from coterie import aggregators, algorithms, attacks, data, initialise, metrics, server, simulate, tasks

rng = np.random.default_rng(0)
federation = data.mixed_regression(rng, clients=80, clusters=2, dim=20, byzantine=0.1)
truth = federation.truth
task = tasks.linear_regression(federation.clients)
attack = attacks.Attack(attacks.paper, target=attacks.smallest)
network = simulate.SimulatedNetwork(task, truth.byzantine, attack, rng, aggregate=aggregators.median)
start = initialise.warm(truth, 0.25, rng).astype("float32")
algorithm = algorithms.ClusteredDescent(server.Server(aggregators.median), rounds=100)
*_, last = simulate.play(algorithm, network, start, rng)
print(metrics.evaluate(last.state.centres, simulate.choices(task, last.state), truth))
"""
"""The example of version 0.1.0."""


def test_the_example_of_the_version_before_still_runs_with_warnings() -> None:
    done = run(README, "-W", "always::DeprecationWarning:__main__")
    assert done.returncode == 0, done.stderr
    assert "'ari': 1.0" in done.stdout
    for name in (
        "aggregators",
        "algorithms",
        "attacks",
        "data",
        "initialise",
        "metrics",
        "server",
        "simulate",
        "tasks",
    ):
        assert f"coterie.{name} is private from version 0.2 on" in done.stderr
    assert "Truth.byzantine is now called is_byzantine" in done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_the_version_before_warns_however_it_is_imported(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"coterie\.{name} is private from version 0\.2 on") as caught:
        getattr(coterie, name)
    assert caught[0].filename == __file__
    script = compile(f"import coterie.{name}", "somebody's script", "exec")
    with pytest.warns(DeprecationWarning, match=rf"coterie\.{name} ") as caught:
        exec(script, {})
    del sys.modules[f"coterie.{name}"]
    vars(coterie).pop(name)
    assert caught[0].filename == "somebody's script"


OLD_NAMES = {
    "aggregators": "Aggregator bucketed centred_clipping filtered_mean geometric_median krum mean mean_over median "
    "mixed per_cluster squared_distances trim_count trimmed_mean trimmed_share",
    "algorithms": "Algorithm ClusteredDescent Exchange LocalMinimisers Network Oracle RobustStart SelfStarting State "
    "ThreeStage Told trimmed_kmeans",
    "assignment": "Memory assign respond",
    "attacks": "WORST Attack Forgery Payload Question Target View alie constant cross_mimic disguised emptiest garbage "
    "gaussian hop inner_product label_flip merge mimic min_max min_sum none own paper phantom random seed_capture "
    "sign_flip smallest trimmed_mean_attack",
    "data": "Block Clients Federation Truth feature_names gaussian_means held_out image_federation mixed_regression "
    "permuted_labels poisson_means read_digits read_folder read_idx read_images rescaled rotated split_dirichlet "
    "split_iid",
    "experiments": "METRICS Config Interrupted MethodResult RunFolder TrialResult as_toml check default_config "
    "parse_config read_config run_trial run_trials summarise",
    "flower": "Answer ClusteredStrategy FlowerNetwork Members Question apps client_app",
    "initialise": "balls bernoulli densest_balls erm from_file gaussian plus_plus spectral trimmed_clusters warm",
    "intake": "Accepted Replies Verdict admit",
    "metrics": "adjusted_rand_index cluster_distances contamination evaluate matched_distance misclustered_fraction",
    "plot": "convergence lines audit_map",
    "report": "as_table results_table",
    "server": "Optimiser Server Step automatic_steps box l2_ball take_step unconstrained unit_sphere",
    "simulate": "Round SimulatedNetwork choices play stream",
    "tasks": "LinearModel Loss Quadratic Response Task linear_regression logistic_loss logistic_regression "
    "mean_estimation module softmax_loss softmax_regression squared_loss",
    "theory": "Constants Setting oracle_error theorem1_condition",
}
"""What the modules of version 0.1.0 offered, without `tasks.Choice` and `Revisited`, which several methods shared."""


def old(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(coterie, module)


@pytest.mark.parametrize("module", MODULES)
def test_the_old_names_are_there(module: str) -> None:
    names = OLD_NAMES[module].split()
    assert [name for name in names if not hasattr(old(module), name)] == []


def test_old_rules_are_the_present_ones() -> None:
    rows, aggregators = np.random.default_rng(0).standard_normal((12, 9)), old("aggregators")
    for found, rule in (
        (aggregators.median(rows), coterie.Median()),
        (aggregators.mean(rows), coterie.Mean()),
        (aggregators.mean_over(rows, clients=20), coterie.Mean(20)),
        (aggregators.trimmed_mean(rows, trim=0.2), coterie.TrimmedMean(0.2)),
        (aggregators.geometric_median(rows, iterations=7), coterie.GeometricMedian(7)),
        (aggregators.krum(rows, byzantine=0.2, selected=0.5), coterie.Krum(0.2, 0.5)),
        (aggregators.centred_clipping(rows, radius=2.0), coterie.CentredClipping(2.0)),
        (aggregators.filtered_mean(rows, liars=3, how="no-regret"), coterie.SpectralFilter(3, "no-regret")),
        (
            aggregators.mixed(rows, aggregators.median, byzantine=0.2),
            coterie.NearestNeighbourMixing(coterie.Median(), 0.2),
        ),
        (
            aggregators.bucketed(rows, aggregators.median, 2, np.random.default_rng(1)),
            coterie.Bucketing(coterie.Median(), 2, np.random.default_rng(1)),
        ),
    ):
        assert np.array_equal(found, rule(rows)), rule
    updates, counts = aggregators.per_cluster(aggregators.median, rows, np.arange(12) % 2, 2)
    np.testing.assert_allclose(updates[0], np.median(rows[::2], axis=0))
    assert counts.tolist() == [6, 6]


def test_old_parameters_are_understood(tmp_path: Path) -> None:
    algorithms, server, simulate, initialise = (old(n) for n in ("algorithms", "server", "simulate", "initialise"))
    descent = algorithms.ClusteredDescent(server.Server(coterie.Median()), rounds=3, size=0.25)
    assert descent.step_size == 0.25
    start = algorithms.RobustStart(initialise.spectral, ask="gradient", byzantine=0.1, clusters=2, most=5)
    assert (start.question, start.byzantine_fraction, start.max_clusters) == ("gradient", 0.1, 5)
    assert algorithms.SelfStarting(descent, start).init == start
    assert algorithms.Told(descent, np.array([0, 1])).labels.tolist() == [0, 1]
    network = simulate.SimulatedNetwork(None, byzantine=np.array([True]), attack=None, rng=None, memory=None)
    assert network.is_byzantine.tolist() == [True]
    assert network.cache is None
    points = np.repeat([[0.0, 0.0], [9.0, 9.0]], 10, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((20, 2))
    found = initialise.spectral(points, 2, byzantine=0.1, rng=np.random.default_rng(0), thrifty=False, forgiving=False)
    assert sorted(found.mean(axis=1).round()) == [0, 9]
    centres, labels = algorithms.trimmed_kmeans(
        points, 2, trim=0.1, iterations=9, starts=3, rng=np.random.default_rng(0)
    )
    assert sorted(centres.mean(axis=1).round()) == [0, 9]
    assert len(set(labels[:10])) == len(set(labels[10:])) == 1
    np.testing.assert_allclose(server.l2_ball(np.array([[3.0, 4.0]]), radius=1.0), [[0.6, 0.8]])
    np.testing.assert_allclose(server.box(np.array([[3.0, -4.0]]), 2.0), [[2.0, -2.0]])
    for kind in ("plain", "momentum", "adam"):
        assert hasattr(server.Optimiser(kind), "update")
    experiments = old("experiments")
    assert experiments.METRICS[0] == "dist"
    config, seen = small("run.trials=1", 'run.methods=["ifca"]'), list[int]()
    folder = experiments.RunFolder(tmp_path / "run", config)
    folder.open()
    (result,) = experiments.run_trials(config, seen.append)
    folder.add(result)
    folder.close("complete")
    assert seen == list(range(1, 14))
    assert (tmp_path / "run" / "centres" / "0.safetensors").exists()
    assert old("attacks").none.name == "data-poisoning"
