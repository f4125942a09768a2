"""`make mutants`: which small changes of the core its tests do not notice."""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mutants.changes import Mutant, mutants, mutated, sample
from mutants.run import PACKAGE, ROOT, Run, prepare, run_all, start
from mutants.selection import TESTS, concerning, equivalents

RESULTS = ROOT / "out" / "mutants" / "results.jsonl"
PAGE = Path(__file__).parent / "README.md"
SEPARATOR = "<!-- the rest is written by make mutants -->\n"


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("files", nargs="*", default=list(TESTS), help="below src/coterie/_src; all by default")
    parser.add_argument("--count", type=int, default=25, help="mutants per file, drawn by the seed; 0: all")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run survivors again and believe what was noticed before")
    parser.add_argument("--fresh", action="store_true", help="believe no earlier result")
    parser.add_argument("--known", action="store_true", help="run nothing, and count only what was examined before")
    parser.add_argument("--list", action="store_true", help="print the sample and run nothing")
    parser.add_argument("--page", action="store_true", help="write the table into tests/mutants/README.md")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.files) - set(TESTS):
        parser.error(f"files: no tests are named for {', '.join(sorted(unknown))} in tests/mutants/selection.py")
    return chosen


def digest(file: str) -> str:
    """Of a file and of the tests that concern it: an earlier result holds as long as none of them changes."""
    paths = [PACKAGE / file]
    for test in concerning(file):
        path = ROOT / test.split("::")[0]
        paths += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def known_results() -> dict[tuple[str, ...], tuple[str, bool]]:
    """(digest, noticed) by file, function and texts."""
    if not RESULTS.exists():
        return {}
    lines = (json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines())
    return {tuple(line["key"]): (line["digest"], line["noticed"]) for line in lines}


def baseline(file: str, output: Path) -> float:
    """The seconds that the tests take without a change, which they must pass."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    times: list[tuple[bool, float]] = []
    jobs = iter([lambda _: start(file, tree, concerning(file), 600.0, output)])
    run_all(jobs, 1, lambda _, noticed, seconds: times.append((noticed, seconds)))
    ((noticed, seconds),) = times
    if noticed:
        raise SystemExit(f"{file}: its tests fail without a change:\n{output.read_text()[-2000:]}")
    return seconds


def examine(file: str, chosen: list[Mutant], args: argparse.Namespace, folder: Path) -> dict[Mutant, bool]:
    """Whether each mutant is noticed, by running the tests or from an earlier run; new results are kept at once."""
    state, known = digest(file), {} if args.fresh else known_results()
    found: dict[Mutant, bool] = {}
    for mutant in chosen:
        before, noticed = known.get((file, *mutant.key), ("", False))
        if before == state or (before and (args.known or (args.again and noticed))):
            found[mutant] = noticed
    todo = [mutant for mutant in chosen if mutant not in found]
    if not todo or args.known:
        return found
    limit = 10 + 5 * baseline(file, folder / "baseline")
    source = (PACKAGE / file).read_text(encoding="utf-8")

    def jobs() -> Iterator[partial[Run]]:
        for mutant in todo:
            tree = mutated(source, mutant)
            yield partial(lambda tree, i: start(file, tree, concerning(file), limit, folder / str(i)), tree)

    with RESULTS.open("a", encoding="utf-8") as kept:

        def done(number: int, noticed: bool, seconds: float) -> None:
            mutant = todo[number]
            found[mutant] = noticed
            line = {"key": [file, *mutant.key], "digest": state, "noticed": noticed, "seconds": round(seconds, 2)}
            print(json.dumps(line), file=kept, flush=True)
            if not noticed:
                print(shown(file, mutant), flush=True)

        run_all(jobs(), args.processes, done)
    return found


def shown(file: str, mutant: Mutant) -> str:
    return f"src/coterie/_src/{file}:{mutant.line} {mutant.function}\n  - {mutant.before}\n  + {mutant.after}"


def page(table: list[tuple[str, int, int, int, int, int]], survivors: list[str], args: argparse.Namespace) -> str:
    """The table of the last run, as Markdown."""
    count = "all" if args.count == 0 else f"at most {args.count}"
    lines = [
        f"Seed {args.seed}, {count} mutants per file, {datetime.date.today()}.\n",
        "| file | mutants | examined | killed | equivalent | survived | killed of the others |",
        "|---|---|---|---|---|---|---|",
    ]
    total = ("all", *(sum(row[i] for row in table) for i in range(1, 6)))
    for name, possible, examined, killed, equivalent, survived in [*table, total]:
        share = f"{killed / (killed + survived):.0%}" if killed + survived else "-"
        lines.append(f"| {name} | {possible} | {examined} | {killed} | {equivalent} | {survived} | {share} |")
    if survivors:
        lines += ["\nSurvivors:\n", "```", *survivors, "```"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    args = options(arguments)
    table, survivors = [], []
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    if not args.list:
        prepare()
    with tempfile.TemporaryDirectory() as folder:
        for file in args.files:
            possible = mutants((PACKAGE / file).read_text(encoding="utf-8"))
            drawn = sample(possible, args.count or len(possible), f"{args.seed}:{file}")
            same = equivalents(file)
            chosen = [mutant for mutant in drawn if mutant.key not in same]
            if args.list:
                print("\n".join(shown(file, mutant) for mutant in chosen))
                continue
            found = examine(file, chosen, args, Path(folder))
            chosen = [mutant for mutant in chosen if mutant in found]
            listed = len([mutant for mutant in drawn if mutant.key in same])
            alive = [mutant for mutant in chosen if not found[mutant]]
            survivors += [shown(file, mutant) for mutant in alive]
            killed = len(chosen) - len(alive)
            table.append((file, len(possible), len(chosen) + listed, killed, listed, len(alive)))
            print(f"{file}: {killed} of {len(chosen)} killed, {listed} equivalent", flush=True)
    if args.list:
        return 0
    text = page(table, survivors, args)
    print(text)
    if args.page:
        begin = PAGE.read_text(encoding="utf-8").split(SEPARATOR)[0]
        PAGE.write_text(begin + SEPARATOR + "\n" + text, encoding="utf-8")
    return int(any(killed < 0.9 * (killed + survived) for _, _, _, killed, _, survived in table))


if __name__ == "__main__":
    sys.exit(main())
