"""Robust aggregates of updates in files, beside the time of reading the files, and the memory that it takes.

In the large setting the files are larger than the system's page cache and dropped from it before every turn, so that
the disk is read. In the small setting they stay in the cache, so that the rules' own speed shows. Reading alone uses as
many threads as the rules do, and reads long stretches of one file after the other, before and after the rule.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import processor
from benchmarks.memory import Peak
from coterie._src.arrays import available_cores
from coterie._src.sharding import aggregate_files
from coterie._src.sharding.rules import RULES

CLIENTS = 100
LARGE, SMALL = "from the disk, larger than the page cache", "from the page cache"
SETTINGS = {LARGE: 70_000_000, SMALL: 10_000_000}
"""The columns of an update."""
PASSES = {"median": 1, "filter": 2, "trimmed-mean": 1, "krum": 2, "geometric-median": 2, "clipping": 2}
"""How often a rule reads the files."""
RULES_OF = {LARGE: ("median", "filter"), SMALL: tuple(PASSES)}
SPARE = 8 << 30
"""Bytes that stay free on the disk."""
STRETCH = 1 << 23
BLOCK = 1 << 22


def run() -> tuple[str, list[dict[str, Any]]]:
    """All rules on all settings for which the disk has room."""
    rows = []
    for setting, columns in SETTINGS.items():
        with tempfile.TemporaryDirectory(dir=os.environ.get("COTERIE_BENCHMARK_DIR")) as name:
            folder = Path(name)
            if shutil.disk_usage(folder).free < 4 * CLIENTS * columns + SPARE:
                continue
            _write(folder, columns)
            for rule in RULES_OF[setting]:
                command = [sys.executable, "-m", "benchmarks.shards", str(folder), rule, str(int(setting == LARGE))]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"{rule}: {done.stderr.strip().splitlines()[-1:]}")
                found = json.loads(done.stdout)
                rows.append({"files": f"{CLIENTS} x {columns:,}, {setting}", "rule": rule, **found})
    return f"{processor()}, {available_cores()} cores, float32 .npy", rows


def _write(folder: Path, columns: int) -> None:
    """Rows of normal noise, of which a fifth is displaced by 0.3; noise is repeated at places that differ by row."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2 * BLOCK, dtype=np.float32)
    for i in range(CLIENTS):
        np.lib.format.open_memmap(folder / f"{i:03}.npy", mode="w+", dtype=np.float32, shape=(columns,)).flush()
        with (folder / f"{i:03}.npy").open("r+b") as file:
            file.seek(-4 * columns, os.SEEK_END)
            for start in range(0, columns, BLOCK):
                first = int(rng.integers(BLOCK))
                part = noise[first : first + min(BLOCK, columns - start)]
                (part + 0.3 if i % 5 == 0 else part).astype(np.float32).tofile(file)
            file.flush()
            os.fsync(file.fileno())


def _forget(folder: Path) -> None:
    """Drop the files from the page cache."""
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(folder: Path) -> None:
    paths = sorted(folder.glob("*.npy"))
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(_read_one, paths))


def _read_one(path: Path) -> None:
    memory = bytearray(STRETCH)
    with path.open("rb", buffering=0) as file:
        while file.readinto(memory):
            pass


def measure(folder: Path, rule: str, cold: bool) -> dict[str, Any]:
    """Read the files, aggregate them, and read them again; the times of reading are averaged."""
    small = folder / "small"
    small.mkdir(exist_ok=True)
    for i in range(12):
        np.save(small / f"{i}.npy", np.arange(1000, dtype=np.float32) + i)
    aggregate_files(small, RULES[rule].build(0.25))  # imports and compiles
    shutil.rmtree(small)
    reading = []
    for turn in range(3):
        if cold:
            _forget(folder)
        began, cpu = time.perf_counter(), time.process_time()
        if turn == 1:
            with Peak() as peak, tempfile.TemporaryDirectory() as out:
                aggregate_files(folder, RULES[rule].build(0.25), out=out)
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        else:
            _read(folder)
            reading.append(time.perf_counter() - began)
    once = sum(reading) / 2
    return {
        "GB": sum(path.stat().st_size for path in folder.glob("*.npy")) / 1e9,
        "reading once s": once,
        "s": seconds,
        "CPU s": cpu_seconds,
        "readings": PASSES[rule],
        "s / readings": seconds / (PASSES[rule] * once),
        "peak GiB": peak.most / 2**30,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], bool(int(sys.argv[3])))))
