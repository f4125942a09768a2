"""The configuration: complete, round-trips, and every mistake is one line that names the key."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from coterie._src.experiments import as_toml, default_config, parse_config, read_config
from coterie._src.experiments.config import compared_methods


def test_the_default_is_the_paper_s_problem() -> None:
    raw = tomllib.loads(as_toml(default_config()))
    problem = {key: raw["problem"][key] for key in ("clusters", "clients", "samples", "dim", "noise_variance")}
    assert problem == {"clusters": 5, "clients": 200, "samples": 100, "dim": 100, "noise_variance": 0.2}
    assert raw["problem"]["byzantine"] == raw["algorithm"]["trim"] == 0.05
    assert raw["run"]["methods"] == compared_methods()


def test_every_key_has_a_comment() -> None:
    lines = as_toml(default_config()).splitlines()
    keys = [i for i, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(keys) > 25
    for i in keys:
        assert lines[i - 1].startswith("# ")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["problem.samples=20..500", "problem.shares=[0.5, 0.5]", "problem.clusters=2"],
        ["problem.kind=poisson-means", "problem.dtype=float64", "algorithm.step=0.01"],
        ["problem.kind=folder", 'problem.path=my "clients"', "problem.task=logistic"],
        ["problem.samples=[3, 4, 5]", "problem.clients=3", "problem.clusters=1", "run.workers=2"],
    ],
)
def test_toml_round_trip(overrides: list[str], tmp_path: Path) -> None:
    config = read_config(None, overrides)
    file = tmp_path / "config.toml"
    file.write_text(as_toml(config, "a header\nof two lines"), encoding="utf-8")
    again = read_config(file)
    assert as_toml(again) == as_toml(config)
    assert again.problem == config.problem


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("problem.clusters=201", "problem.clusters must be at most clients (200), got 201"),
        ("problem.clusters=0", "problem.clusters: must be"),
        ("problem.clients=-5", "problem.clients: must be"),
        ("problem.samples=-1", "problem.samples: must be"),
        ("problem.samples=9..3", "problem.samples must be a range"),
        ("problem.samples=many", "problem.samples: must be"),
        ("problem.samples=[1, 2]", "problem.samples must hold one number per client (200), got 2"),
        ("problem.dim=0", "problem.dim: must be"),
        ("problem.dim=2.5", "problem.dim: must be"),
        ('problem.dim="20"', "problem.dim: must be"),
        ("problem.noise_variance=-0.1", "problem.noise_variance: must be"),
        ("problem.noise_variance=nan", "problem.noise_variance: must be"),
        ("problem.byzantine=1.0", "problem.byzantine: must be"),
        ("problem.byzantine=0.999", "problem.byzantine = 0.999 leaves no honest client"),
        ("problem.shares=[0.4, 0.6]", "problem.shares must be 5 positive numbers"),
        ("problem.kind=rings", "problem.kind: must be mixed-regression"),
        ("problem.clutsers=3", "problem.clutsers: unknown key; did you mean problem.clusters?"),
        ("problem.trim=0.1", "problem.trim: unknown key; did you mean algorithm.trim?"),
        ("algorithm.trim=0.5", "algorithm.trim: must be"),
        ("algorithm.trim=-0.1", "algorithm.trim: must be"),
        ("algorithm.step=0", "algorithm.step: must be"),
        ("algorithm.step=inf", "algorithm.step: must be"),
        ("algorithm.step=fast", "algorithm.step: must be"),
        ("algorithm.rounds=-1", "algorithm.rounds: must be"),
        ("algorithm.empty=drop", "algorithm.empty: must be"),
        ("algorithm.project=sphere", "algorithm.project: must be"),
        ("algorithm.resample=true", "algorithm.resample: needs at least 2*rounds = 600 samples"),
        ("three_stage.starts=0", "three_stage.starts: must be"),
        ("algorithm.ifca_divisor=half", "algorithm.ifca_divisor: must be"),
        ("atack.kind=paper", "atack: unknown section; did you mean attack?"),
        ("attack.kind=meteor", "attack.kind: must be"),
        ("attack.target=all", "attack.target: must be"),
        ("run.trials=0", "run.trials: must be"),
        ("run.seed=-1", "run.seed: must be"),
        ('run.methods=["fedavg"]', "run.methods: must be"),
        ("run.methods=[]", "run.methods: must be"),
        ("problem=3", "must read section.key=value"),
        ("problem.dim", "must read section.key=value"),
        ("a.b.c=1", "must read section.key=value"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(override: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read_config(None, [override])
    assert expected in str(caught.value)


def test_mistakes_of_a_folder_problem() -> None:
    base = {"problem": {"kind": "folder", "path": "clients"}}
    assert parse_config(base).methods == ["coterie", "coterie+own", "global", "global+own", "local", "local+own"]
    everything = {**base, "run": {"methods": compared_methods()}, "algorithm": {"personalise": "none"}}
    assert parse_config(everything).methods == [name for name in compared_methods() if name != "oracle"]
    for section, keys, expected in (
        ("algorithm", {"init": "warm"}, "algorithm.init: warm needs the true centres"),
        ("three_stage", {"first": "truth"}, "three_stage.first: truth needs the true labels"),
        ("run", {"methods": ["oracle"]}, "run.methods: oracle needs the truth"),
    ):
        with pytest.raises(ValueError, match=expected):
            parse_config({**base, section: keys})
    with pytest.raises(
        ValueError, match=r"problem\.dim: unknown key for this problem; it belongs to .* mixed-regression"
    ):
        parse_config({"problem": {"kind": "folder", "path": "clients", "dim": 3}})


def test_another_kind_of_problem_drops_the_keys_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(as_toml(default_config()), encoding="utf-8")
    assert read_config(file, ["problem.kind=poisson-means"]).problem.kind == "poisson-means"
    assert read_config(file, ["problem.kind=folder"]).problem.kind == "folder"
    with pytest.raises(ValueError, match=r"problem\.noise_variance: unknown key for this problem"):
        read_config(file, ["problem.kind=poisson-means", "problem.noise_variance=0.1"])


def test_the_float32_inverse_is_for_linear_regression() -> None:
    with pytest.raises(ValueError, match=r"three_stage\.erm: float32-inverse"):
        read_config(None, ["problem.kind=gaussian-means", "three_stage.erm=float32-inverse"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    for content in (b"[problem\n", b"\xff\xfe\x00", b"problem = 3"):
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            read_config(broken)
    with pytest.raises(ValueError, match=r"nowhere\.toml: cannot be read"):
        read_config(tmp_path / "nowhere.toml")


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        default_config().run.seed = 3
