"""`python -m benchmarks NAME [--json]`: measure, and print a table or JSON."""

from __future__ import annotations

import argparse
import json

from benchmarks import gpu, grid

BENCHMARKS = {"gpu": gpu.run, "grid": grid.run}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHMARKS))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    machine, rows = BENCHMARKS[arguments.name]()
    if arguments.json:
        print(json.dumps({"machine": machine, "rows": rows}))
        return
    print(machine)
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


main()
