"""`python -m benchmarks NAME [--json]`: measure, and print a table or JSON."""

from __future__ import annotations

import argparse
import importlib
import json

BENCHMARKS = ("cpu", "simulation", "method", "start", "memory", "networks", "federation", "deployment", "gpu", "grid")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    machine, rows = importlib.import_module(f"benchmarks.{arguments.name}").run()
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": rows}))
        return
    print(machine)
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


main()
