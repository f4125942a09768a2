"""Networks on rotated MNIST: IFCA's experiment, without Byzantine clients and with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.plot import WIDTH, method_colour, new_figure, save, styled
from coterie._src.studies.arena import NO_ATTACK
from coterie._src.studies.markdown import plus_minus, table
from coterie._src.studies.study import Options, Rows, Study

SETTINGS = ((1200, 200), (2400, 100), (4800, 50))
"""(m, n): the 60,000 images of each of four rotations over a quarter of the clients, as in IFCA's Table 1."""
QUICK = ((1200, 50),)
ATTACKS: dict[str, dict[str, Any]] = {
    NO_ATTACK: {"problem": {"byzantine": 0.0}},
    "10 % sign-flip": {"attack": {"kind": "sign-flip"}},
    "10 % sign-flip, tenfold": {"attack": {"kind": "sign-flip", "scale": 10.0}},
    "10 % ALIE on one cluster": {"attack": {"kind": "alie", "target": "smallest"}},
    "10 % ALIE on one cluster, z = 10": {"attack": {"kind": "alie", "target": "smallest", "scale": 10.0}},
    "10 % label flipping": {"attack": {"kind": "label-flip"}},
}
CLUSTERED = ("coterie", "brifca-median", "brifca-trimmed", "ifca")
REFERENCES = ("global", "local", "oracle")
COLLAPSED = 0.9
"""An adjusted Rand index below this counts as a collapse: two of four clusters that share a model give 0.71."""


def grids(path: Path, trials: int, quick: bool = False, device: str = "cpu") -> dict[str, Grid]:
    """The grids of the study.

    honest: no Byzantine clients, all methods, from the spectral start. attacked: the same start, under each attack.
    momentum: the first setting again, with momentum on the server. random: no Byzantine clients, and a start at random
    networks, as in IFCA's experiment.

    path: the folder with MNIST's four IDX files. quick: one small setting, 60 rounds.
    """
    settings = [{"problem": {"clients": m, "samples": n}} for m, n in (QUICK if quick else SETTINGS)]

    def grid(
        init: str, methods: Sequence[str], attacks: Sequence[dict[str, Any]], first: bool = False, **more: str
    ) -> Grid:
        return parse_grid(
            {
                "problem": {"kind": "rotated-digits", "path": str(path)},
                "algorithm": {"init": init, "rounds": 60 if quick else 300, **more},
                "run": {"methods": list(methods), "trials": trials, "device": device},
                "settings": [
                    {**setting, **attack, "problem": {**setting["problem"], **attack.get("problem", {})}}
                    for setting in (settings[:1] if first else settings)
                    for attack in attacks
                ],
            }
        )

    honest, *attacks = ATTACKS.values()
    published = [keys for keys in ATTACKS.values() if "scale" not in keys.get("attack", {})]
    return {
        "honest": grid("spectral", (*CLUSTERED, *REFERENCES), [honest]),
        "attacked": grid("spectral", CLUSTERED, attacks),
        "momentum": grid("spectral", CLUSTERED, published, first=True, optimiser="momentum"),
        "random": grid("fresh", CLUSTERED[1:], [honest]),
    }


def attack_of(row: Row) -> str:
    """The name of a row's attack."""
    if row["problem.byzantine"] == 0:
        return NO_ATTACK
    own = row["attack.kind"], row["attack.scale"]
    known = {name: keys["attack"] for name, keys in ATTACKS.items() if "attack" in keys}
    return next(name for name, keys in known.items() if (keys["kind"], keys.get("scale", "auto")) == own)


def rotated_mnist_report(found: Rows) -> str:
    """Markdown: a table for each setting, one with momentum, and one for random starts."""
    spectral = [*found.get("honest", ()), *found.get("attacked", ())]
    parts = {
        "From the spectral start": spectral,
        "The same with momentum on the server": found.get("momentum", ()),
        "From random networks, no Byzantine clients": found.get("random", ()),
    }
    lines = []
    for title, rows in parts.items():
        lines += [f"## {title}", ""] if rows else []
        for clients, samples in sorted({(row["problem.clients"], row["problem.samples"]) for row in rows}):
            own = [row for row in rows if (row["problem.clients"], row["problem.samples"]) == (clients, samples)]
            trials = len({(row["seed"], row["trial"]) for row in own})
            lines += [f"### m = {clients}, n = {samples}, {trials} trials", "", *_accuracies(own), ""]
    return "\n".join(lines)


def _accuracies(rows: Sequence[Row]) -> list[str]:
    named = [{**row, "attack": attack_of(row)} for row in rows]
    attacks = [name for name in ATTACKS if any(row["attack"] == name for row in named)]
    means = aggregate(named, ["attack"])
    most = max(line["trials"] for line in means)
    lines = []
    for method in dict.fromkeys(line["method"] for line in means):
        cells = []
        for attack in attacks:
            here = [line for line in means if line["method"] == method and line["attack"] == attack]
            own = [row for row in named if row["method"] == method and row["attack"] == attack]
            cells.append(_cell(here[0], own, most) if here else "-")
        lines.append([method, *cells])
    return table(["accuracy in %, ARI", *attacks], lines)


def _cell(line: Row, own: Sequence[Row], trials: int) -> str:
    if line["accuracy"] is None:
        return "-"
    error = None if line["accuracy_se"] is None else 100 * line["accuracy_se"]
    parts = [plus_minus(100 * line["accuracy"], error, ".2f")]
    if line["ari"] is not None and line["method"] != "global":
        parts.append(f"{line['ari']:.2f}")
        if collapsed := sum(row["ari"] < COLLAPSED for row in own):
            parts.append(f"{collapsed} of {len(own)} collapsed")
    if len(own) < trials:
        parts.append(f"{len(own)} trial{'s' if len(own) > 1 else ''}")
    return ", ".join(parts)


@styled
def accuracies(rows: Sequence[Row], path: str | Path) -> None:
    """Test accuracy of every method under every attack, one panel for each number of clients.

    The axis begins 10 to 20 points below the best accuracy; a bar that ends below that has its number written there.
    The methods are named in the bars of the first attack.
    """
    named = [{**row, "attack": attack_of(row)} for row in rows]
    settings = sorted({(row["problem.clients"], row["problem.samples"]) for row in named})
    figure = new_figure(WIDTH, 0.8 + 2.8 * len(settings))
    all_axes = figure.subplots(len(settings), 1, squeeze=False, sharex=True)[:, 0]
    attacks = [name for name in ATTACKS if any(row["attack"] == name for row in named)]
    methods = [name for name in (*CLUSTERED, *REFERENCES) if any(row["method"] == name for row in named)]
    by_attack = {attack: [row for row in named if row["attack"] == attack] for attack in attacks}
    floor = max(0.0, 10 * (max(10 * row["accuracy"] for row in named) // 1 - 1))
    for axes, (clients, samples) in zip(all_axes, settings, strict=True):
        means = aggregate(
            [row for row in named if (row["problem.clients"], row["problem.samples"]) == (clients, samples)], ["attack"]
        )
        known = {(line["method"], line["attack"]): line for line in means}
        for group, attack in enumerate(attacks):
            present = [method for method in methods if any(row["method"] == method for row in by_attack[attack])]
            for position, method in enumerate(present):
                line = known.get((method, attack), {})
                height, error = (100 * (line.get(name) or 0.0) for name in ("accuracy", "accuracy_se"))
                x, width = group + (position - len(present) / 2 + 0.5) * BAR, 0.92 * BAR
                axes.bar(x, height, width, yerr=error, color=method_colour(method))
                _name_bar(axes, x, height, floor, method if axes is all_axes[0] and group == 0 else "")
        axes.set_ylabel("test accuracy in %")
        axes.set_title(f"m = {clients}, n = {samples}")
        axes.set_ylim(floor, 100)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(
            range(len(attacks)), [fill(attack, 12, break_on_hyphens=False) for attack in attacks], fontsize=11
        )
    save(figure, path)


BAR = 0.86 / (len(CLUSTERED) + len(REFERENCES))
"""The distance of two bars, where that of two attacks is 1."""


def _name_bar(axes: Any, x: float, height: float, floor: float, method: str) -> None:
    """Write the name of the method into its bar, or above a bar that is short; the height of a bar that is not seen."""
    short = height < floor + 8
    if method:
        above = max(height, floor) + (1.6 if 0 < height < floor else 0.4)
        start = above if short else floor + 0.4
        colour = method_colour(method) if short else "white"
        axes.text(x, start, method, rotation=90, ha="center", va="bottom", fontsize=10.5, color=colour)
    if 0 < height < floor:
        axes.text(x, floor + 0.3, f"{height:.0f}", ha="center", fontsize=10.5)


def _grids(options: Options) -> dict[str, Grid]:
    if options.data is None:
        raise ValueError("rotated-mnist: needs --data, the folder with MNIST's IDX files")
    return grids(options.data, options.trials, options.quick, options.device)


STUDY = Study(
    name="rotated-mnist",
    summary="perceptrons on MNIST in four rotations, IFCA's problem; needs --data, the folder with MNIST's IDX files",
    grids=_grids,
    reports={"models.md": lambda rows, options: rotated_mnist_report(rows)},
    figures={"accuracies.png": lambda rows, path, options: accuracies([*rows["honest"], *rows["attacked"]], path)},
    trials=5,
    quick_trials=2,
    needs_data=True,
    report_early=True,
    prints_tables=False,
)
