"""The ready-made app with networks: images and any module that is installed, over Flower's messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from safetensors.torch import load_file

import coterie as ct
from coterie._src.experiments import Config, read_config, run_trial
from coterie._src.experiments.toml import as_toml
from coterie._src.federation.apps import RunSettings, apps, run_server
from coterie._src.federation.deployment import write_deployment
from coterie._src.federation.installed import installed_app, ready_made_site
from coterie._src.federation.site_check import check_site
from coterie._src.federation.site_policy import SitePolicy
from in_process import InProcessGrid
from small_network import SmallNetwork

torch = pytest.importorskip("torch")
COUNT = 6


def written(folder: Path) -> Path:
    """Six sites with 40 images each; in three of them the classes are numbered the other way round."""
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((3, 6, 6))
    folder.mkdir()
    for i in range(COUNT):
        classes = rng.integers(0, 3, 40)
        images = patterns[classes] + 0.3 * rng.standard_normal((40, 6, 6))
        np.savez(folder / f"site{i}.npz", x=images[:, None], y=classes if i % 2 == 0 else 2 - classes)
    return folder


def configured(folder: Path, *more: str) -> Config:
    return read_config(None, [
        "problem.kind=network", "problem.clusters=2", f'problem.path="{folder}"', "problem.shape=[1, 6, 6]",
        "problem.classes=3", "problem.module=small_network:SmallNetwork", "problem.local_steps=5",
        "algorithm.max_byzantine=0", *more,
    ])  # fmt: skip


def grid_of(config: Config, folder: Path, tmp_path: Path) -> Grid:
    """The sites, each with its own file and, as no policy is named, the default one."""
    (tmp_path / "config.toml").write_text(as_toml(config))
    nodes = {
        i: {"data": str(folder / f"site{i}.npz"), "models": str(tmp_path / f"at-site{i}" / "models")}
        for i in range(COUNT)
    }
    return InProcessGrid(apps(tmp_path / "config.toml")[1], nodes, configs=nodes)


def test_sites_with_a_module_learn_what_the_simulation_learns(tmp_path: Path) -> None:
    """The same networks, five local steps at a time, from the same start; without held-out samples, which differ."""
    folder = written(tmp_path / "clients")
    config = configured(folder, "problem.holdout=0", "algorithm.rounds=4", 'run.methods=["brifca-median"]')
    out = tmp_path / "federation"
    settings = RunSettings("brifca-median", COUNT, COUNT, deadline=20.0, folder=str(out))
    run_server(config, settings, grid_of(config, folder, tmp_path))
    here = run_trial(config, 0, record=False).methods["brifca-median"].centres
    models = ct.load(out)
    np.testing.assert_allclose(models.centres, here, atol=1e-5)
    one = load_file(out / "cluster-1.safetensors")
    network = SmallNetwork()
    network.load_state_dict(one)  # the module's own names and shapes
    images = np.load(folder / "site0.npz")["x"].astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(images)).argmax(1).numpy()
    np.testing.assert_array_equal(models.predict(images, 1), expected)
    again = configured(folder, f'algorithm.init="{out / "centres.safetensors"}#brifca-median"', "algorithm.rounds=0")
    settings = RunSettings("brifca-median", COUNT, COUNT, deadline=20.0, folder=str(tmp_path / "again"))
    run_server(again, settings, grid_of(again, folder, tmp_path))
    np.testing.assert_array_equal(ct.load(tmp_path / "again").centres, models.centres)


def test_sites_report_the_accuracy_of_their_networks_and_keep_them(tmp_path: Path) -> None:
    folder = written(tmp_path / "clients")
    config, out = configured(folder, "algorithm.rounds=6"), tmp_path / "federation"
    settings = RunSettings("coterie", COUNT, COUNT, deadline=20.0, folder=str(out))
    run_server(config, settings, grid_of(config, folder, tmp_path))
    table = (out / "evaluation.txt").read_text()
    assert "test accuracy" in table
    accuracies = [float(line.split()[-2]) for line in table.splitlines() if "of its cluster" in line]
    assert accuracies[0] > 0.9
    kept = tmp_path / "at-site0" / "models"
    assert {"personal", "cluster", "local"} <= set(load_file(kept / "personal.safetensors"))
    assert ct.load(kept).centres.shape == (2, 119)


def test_rotated_digits_are_rehearsed_with_their_perceptron(tmp_path: Path) -> None:
    config = read_config(None, [
        "problem.kind=rotated-digits", "problem.clusters=2", f"problem.clients={COUNT}", "problem.samples=30",
        "problem.byzantine=0", "problem.hidden=8", "problem.local_steps=2", "algorithm.rounds=2",
        "algorithm.max_byzantine=0", 'run.methods=["ifca"]',
    ])  # fmt: skip
    (tmp_path / "config.toml").write_text(as_toml(config))
    grid = InProcessGrid(apps(tmp_path / "config.toml")[1], range(COUNT))
    run_server(config, RunSettings("ifca", COUNT, COUNT, deadline=20.0, folder=str(tmp_path / "out")), grid)
    here = run_trial(config, 0, record=False).methods["ifca"].centres
    np.testing.assert_allclose(ct.load(tmp_path / "out").centres, here, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["problem.module=small_network:absent"], "problem.module: small_network:absent is not installed here"),
        (["problem.module=os:getcwd"], "problem.module: os:getcwd makes a str, no torch.nn.Module"),
        (["problem.module=small_network:WithBuffers"], "module: has buffers"),
        (["problem.classes=4"], "problem.module: small_network:SmallNetwork must give 4 numbers"),
        (["problem.shape=[3, 6, 6]"], r"problem.shape: small_network:SmallNetwork does not take \[3, 6, 6\]"),
    ],
)
def test_a_module_that_does_not_fit_is_named(changes: list[str], named: str, tmp_path: Path) -> None:
    config = configured(written(tmp_path / "clients"), *changes)
    if any("shape" in change for change in changes):
        np.savez(tmp_path / "clients" / "site0.npz", x=np.zeros((40, 3, 6, 6)), y=np.zeros(40))
    node = {"data": str(tmp_path / "clients" / "site0.npz")}
    with pytest.raises(ValueError, match=named):
        ready_made_site(config, Context(1, 1, node, RecordDict(), {}))


@pytest.mark.parametrize("path", ["os.system", "os:system()", "os:", ":x", "os;x:y", "../x:y"])
def test_an_import_path_is_a_name_and_nothing_else(path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"import path such as package\.module:name"):
        configured(tmp_path, f'problem.module="{path}"')


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": np.zeros((4, 6, 6))}, "no array 'y'"),
        ({"x": np.zeros((4, 5, 5)), "y": np.zeros(4)}, r"x must have the shape \(n, 1, 6, 6\)"),
        ({"x": np.zeros((4, 36)), "y": np.zeros(3)}, r"y \(n,\)"),
        ({"x": np.full((4, 36), np.nan), "y": np.zeros(4)}, "not a finite number"),
        ({"x": np.zeros((4, 36)), "y": np.array([0.5] * 4)}, "must hold classes"),
        ({"x": np.zeros((4, 36)), "y": np.full(4, 3)}, "problem.classes: must be more than 3"),
        ({"x": np.array([object()] * 4), "y": np.zeros(4)}, "cannot be read as .npz"),
    ],
)
def test_a_file_that_does_not_fit_is_named(arrays: dict[str, np.ndarray], named: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "site.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=named):
        ready_made_site(configured(tmp_path), Context(1, 1, {"data": str(tmp_path / "site.npz")}, RecordDict(), {}))


def test_bytes_are_divided_by_255_and_numbers_are_targets(tmp_path: Path) -> None:
    config = configured(tmp_path, "problem.module=small_network:one_number", "problem.predicts=numbers")
    np.savez(tmp_path / "site.npz", x=np.full((40, 6, 6), 51, np.uint8), y=np.arange(40.0))
    site = ready_made_site(config, Context(1, 1, {"data": str(tmp_path / "site.npz")}, RecordDict(), {}))
    features, targets = site.task.clients.features, site.task.clients.targets
    assert features.shape == (30, 36)
    assert features.unique().tolist() == [pytest.approx(0.2)]
    centre = torch.zeros((1, 37))
    np.testing.assert_allclose(site.task.losses(centre)[0, 0], (targets**2).mean(), rtol=1e-6)


def test_a_deployment_of_images_and_its_dry_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "clients")
    config = configured(folder)
    place = tmp_path / "deployment"
    write_deployment(place, config, ["oslo"], host="127.0.0.1", insecure=True, method="ifca")
    assert ".npz with the arrays x (n, 1, 6, 6) and y (n,)" in (place / "README.md").read_text()
    found = check_site(config, SitePolicy(), folder / "site0.npz")
    assert (found.samples, found.held_out) == (30, 10)
    assert found.weights == ("each of the 119 parameters of the network",)
    assert any("only noise helps" in note for note in found.notes)
    installed = installed_app(place / "oslo", folder / "site0.npz")
    assert installed.run_config == {"method": "ifca"}
