"""`coterie results` and `coterie plot`."""

from __future__ import annotations

import json
from pathlib import Path

from pyarrow import parquet

from command import coterie


def test_results_and_plots_of_a_sweep(finished: Path, tmp_path: Path) -> None:
    done = coterie("results", str(finished), "--where", "dim=5", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["algorithm.step"] for row in json.loads(done.stdout)} == {0.05, "auto"}
    shown = coterie("results", str(finished), "--by", "dim", cwd=tmp_path).stdout
    assert "brifca-median" in shown
    assert "±" in shown
    raw = coterie("results", str(finished), "--raw", "--format", "csv", cwd=tmp_path).stdout
    assert len(raw.splitlines()) == 25
    assert coterie("results", str(finished), "--format", "parquet", "--out", "r.parquet", cwd=tmp_path).returncode == 0
    assert parquet.read_table(tmp_path / "r.parquet").num_rows == 8
    for arguments, named in (
        (["--where", "dim=99"], "no result"),
        (["--where", "colour=red"], "colour"),
        (["--format", "parquet"], "--out"),
        (["--by", "colour"], "colour"),
    ):
        wrong = coterie("results", str(finished), *arguments, cwd=tmp_path)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert named in wrong.stderr
    for arguments, named in (
        (["--y", "dim"], "y: must be a metric"),
        (["--y", "colour"], "colour: no such key"),
    ):
        wrong = coterie("plot", str(finished), *arguments, cwd=tmp_path)
        assert (wrong.returncode, named in wrong.stderr) == (2, True)
    mixed = coterie("plot", str(finished), "--x", "step", "--series", "dim", "--log", "--out", "m.png", cwd=tmp_path)
    assert mixed.returncode == 0, mixed.stderr
    pooled = coterie("plot", str(finished), "--x", "dim", "--out", "p.png", cwd=tmp_path)
    assert "algorithm.step vary, too" in pooled.stderr
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        drawn = coterie("plot", str(finished), "--x", "dim", "--y", "dist", "--log", "--where", "step=auto",
                        "--out", name, cwd=tmp_path)  # fmt: skip
        assert drawn.returncode == 0, drawn.stderr
        assert (tmp_path / name).read_bytes().startswith(magic)
