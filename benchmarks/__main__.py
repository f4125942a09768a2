"""`python -m benchmarks NAME [--json] [--against CHECKOUT] [--sizes M …]`: measure, and print a table or JSON."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

BENCHMARKS = (
    "cpu", "simulation", "checkouts", "method", "start", "memory", "networks", "federation", "deployment", "gpu",
    "grid", "watch", "scale", "shards",
)  # fmt: skip
COMPARING = ("checkouts",)
"""Those that measure another checkout beside this one."""
SIZED = ("scale",)
"""Those that measure several numbers of clients."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--against", type=Path, help=f"another checkout, for {', '.join(COMPARING)}")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"numbers of clients, for {', '.join(SIZED)}")
    arguments = parser.parse_args()
    comparing = arguments.name in COMPARING
    if comparing != (arguments.against is not None):
        parser.error(f"--against: {arguments.name} {'needs' if comparing else 'takes no'} other checkout")
    if arguments.sizes and arguments.name not in SIZED:
        parser.error(f"--sizes: {arguments.name} takes no numbers of clients")
    options = (arguments.against.resolve(),) if comparing else (arguments.sizes,) if arguments.sizes else ()
    machine, rows = importlib.import_module(f"benchmarks.{arguments.name}").run(*options)
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": rows}))
        return
    print(machine)
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


main()
