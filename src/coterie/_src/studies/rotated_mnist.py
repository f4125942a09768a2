"""Networks on rotated MNIST: IFCA's experiment, without liars and with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid

SETTINGS = ((1200, 200), (2400, 100), (4800, 50))
"""(m, n): the 60,000 images of each of four rotations over a quarter of the clients, as in IFCA's Table 1."""
QUICK = ((1200, 50),)
ATTACKS: dict[str, dict[str, Any]] = {
    "nobody lies": {"problem": {"byzantine": 0.0}},
    "10 % sign-flip": {"attack": {"kind": "sign-flip"}},
    "10 % sign-flip, tenfold": {"attack": {"kind": "sign-flip", "scale": 10.0}},
    "10 % ALIE on one cluster": {"attack": {"kind": "alie", "target": "smallest"}},
    "10 % ALIE on one cluster, z = 10": {"attack": {"kind": "alie", "target": "smallest", "scale": 10.0}},
    "10 % label flipping": {"attack": {"kind": "label-flip"}},
}
CLUSTERED = ("coterie", "brifca-median", "brifca-trimmed", "ifca")
REFERENCES = ("global", "local", "oracle")
LOST = 0.9
"""An adjusted Rand index below this is a collapse: two of four clusters that share a model give 0.71."""


def questions(path: Path, trials: int, quick: bool = False, device: str = "cpu") -> dict[str, Grid]:
    """honest: nobody lies, all methods, from a start that the server finds by asking. attacked: the same start, under
    each attack. momentum: the first setting again, with momentum on the server. random: nobody lies, and the start is
    random networks, as IFCA has it.

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

    nobody, *attacks = ATTACKS.values()
    published = [keys for keys in ATTACKS.values() if "scale" not in keys.get("attack", {})]
    return {
        "honest": grid("spectral", (*CLUSTERED, *REFERENCES), [nobody]),
        "attacked": grid("spectral", CLUSTERED, attacks),
        "momentum": grid("spectral", CLUSTERED, published, first=True, optimiser="momentum"),
        "random": grid("fresh", CLUSTERED[1:], [nobody]),
    }


def attack_of(row: Row) -> str:
    """The name of a row's attack."""
    if row["problem.byzantine"] == 0:
        return "nobody lies"
    lie = row["attack.kind"], row["attack.scale"]
    known = {name: keys["attack"] for name, keys in ATTACKS.items() if "attack" in keys}
    return next(name for name, keys in known.items() if (keys["kind"], keys.get("scale", "auto")) == lie)


def models_report(found: Mapping[str, Sequence[Row]]) -> str:
    """Markdown: a table for each setting, one with momentum, and one for random starts."""
    asked = [*found.get("honest", ()), *found.get("attacked", ())]
    parts = {
        "From a start found by asking": asked,
        "The same with momentum on the server": found.get("momentum", ()),
        "From random networks, nobody lies": found.get("random", ()),
    }
    lines = []
    for title, rows in parts.items():
        lines += [f"## {title}", ""] if rows else []
        for clients, samples in sorted({(row["problem.clients"], row["problem.samples"]) for row in rows}):
            own = [row for row in rows if (row["problem.clients"], row["problem.samples"]) == (clients, samples)]
            trials = len({(row["seed"], row["trial"]) for row in own})
            lines += [f"### m = {clients}, n = {samples}, {trials} trials", "", *_table(own), ""]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> list[str]:
    named = [{**row, "attack": attack_of(row)} for row in rows]
    attacks = [name for name in ATTACKS if any(row["attack"] == name for row in named)]
    table = aggregate(named, ["attack"])
    most = max(line["trials"] for line in table)
    lines = [f"| accuracy in %, ARI | {' | '.join(attacks)} |", "|---|" + "---|" * len(attacks)]
    for method in dict.fromkeys(line["method"] for line in table):
        cells = []
        for attack in attacks:
            here = [line for line in table if line["method"] == method and line["attack"] == attack]
            own = [row for row in named if row["method"] == method and row["attack"] == attack]
            cells.append(_cell(here[0], own, most) if here else "-")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _cell(line: Row, own: Sequence[Row], trials: int) -> str:
    if line["accuracy"] is None:
        return "-"
    error = "" if line["accuracy_se"] is None else f" ± {100 * line['accuracy_se']:.2f}"
    parts = [f"{100 * line['accuracy']:.2f}{error}"]
    if line["ari"] is not None and line["method"] != "global":
        parts.append(f"{line['ari']:.2f}")
        if lost := sum(row["ari"] < LOST for row in own):
            parts.append(f"{lost} of {len(own)} collapsed")
    if len(own) < trials:
        parts.append(f"{len(own)} trial{'s' if len(own) > 1 else ''}")
    return ", ".join(parts)
