"""Updates in files: what is read, what is refused, and that the aggregate is that of the rule on the whole array."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from coterie._src.aggregators import Aggregator, Median, SpectralFilter, as_aggregator
from coterie._src.aggregators import columns as columns_module
from coterie._src.arrays import Ints
from coterie._src.intake import Verdict
from coterie._src.sharding import aggregate_files
from coterie._src.sharding.files import Field, FileRows, Malformed, Refused, check_layout, describe
from coterie._src.sharding.rules import RULES


def updates(rows: int = 12, columns: int = 50, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    found[-2:] += 3.0
    return found


def save(folder: Path, rows: np.ndarray) -> None:
    for i, row in enumerate(rows):
        np.save(folder / f"{i:02}.npy", row)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of few columns, so that small files have several."""
    monkeypatch.setattr(columns_module, "READ_NUMBERS", 12 * 7)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", RULES.names)
def test_every_rule_gives_what_it_gives_in_memory(name: str, tmp_path: Path) -> None:
    save(tmp_path, updates())
    rule = RULES[name].build(0.2)
    found = aggregate_files(tmp_path, rule)
    assert found.counts == (12,)
    assert set(found.verdicts.values()) == {Verdict.ACCEPTED}
    np.testing.assert_allclose(found.updates[0], rule(updates()), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("narrow")
def test_clusters(tmp_path: Path) -> None:
    rows = updates()
    save(tmp_path, rows)
    labels: dict[str, object] = {f"{i:02}.npy": i % 2 for i in range(12)}
    labels |= {"00.npy": 3, "01.npy": True, "02.npy": -1, "03.npy": 1.0}
    del labels["04.npy"]
    found = aggregate_files(tmp_path, Median(), labels=labels, clusters=3, out=tmp_path / "out")  # type: ignore[arg-type]
    assert found.counts == (3, 4, 0)
    assert found.updates[0].tobytes() == Median()(rows[[6, 8, 10]]).tobytes()  # type: ignore[union-attr]
    assert found.updates[1].tobytes() == Median()(rows[[5, 7, 9, 11]]).tobytes()  # type: ignore[union-attr]
    assert found.updates[2] is None
    assert found.paths == (tmp_path / "out/cluster-0.npy", tmp_path / "out/cluster-1.npy", None)
    assert [name for name, verdict in found.verdicts.items() if verdict == Verdict.WRONG_LABEL] == list(found.faults)
    assert found.faults["00.npy"] == "has label 3, not a whole number in [0, 3)"
    assert list(found.faults) == [f"{i:02}.npy" for i in range(5)]


# --- forms of files -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("narrow")
def test_safetensors_in_any_order_and_precision(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    models = [
        {
            "layer.weight": torch.randn(4, 6, generator=generator).to(torch.bfloat16),
            "layer.bias": torch.randn(4, generator=generator).to(torch.float16),
            "scale": torch.randn((), generator=generator),
            "nothing": torch.zeros(0, 3),
        }
        for _ in range(9)
    ]
    for i, model in enumerate(models):
        save_tensors(model, tmp_path / f"{i}.safetensors", metadata={"client": str(i)})
    found = aggregate_files(tmp_path, Median(), out=tmp_path / "out")
    written = load_file(tmp_path / "out" / "cluster-0.safetensors")
    assert set(written) == set(models[0])
    for name, array in written.items():
        expected = torch.stack([model[name].float() for model in models]).median(dim=0).values.numpy()
        assert array.dtype == np.float32
        assert array.shape == expected.shape
        assert array.tobytes() == expected.tobytes() == found.updates[0][name].tobytes()  # type: ignore[index,call-overload]


def test_another_order_of_the_arrays_in_a_file_is_the_same_update(tmp_path: Path) -> None:
    arrays = {"b": np.arange(4.0), "a": np.arange(3.0) + 9}
    save_file(arrays, tmp_path / "0.safetensors")
    payload = arrays["a"].tobytes() + arrays["b"].tobytes()
    header = {"b": _entry("F64", [4], 24, 56), "a": _entry("F64", [3], 0, 24)}
    (tmp_path / "1.safetensors").write_bytes(_safetensors(header, payload))
    found = aggregate_files(tmp_path, Median()).updates[0]
    assert {name: array.tolist() for name, array in found.items()} == {"a": [9, 10, 11], "b": [0, 1, 2, 3]}  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npy(dtype: type, tmp_path: Path) -> None:
    rows = updates().astype(dtype).reshape(12, 5, 10)
    save(tmp_path, rows)
    found = aggregate_files(tmp_path, Median(), out=tmp_path).updates[0]
    wide = rows.astype(np.float64 if dtype is np.float64 else np.float32).reshape(12, 50)
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == Median()(wide).tobytes()
    assert np.load(tmp_path / "cluster-0.npy").tobytes() == found.tobytes()
    assert np.load(tmp_path / "cluster-0.npy").shape == (5, 10)


def test_a_sum_of_float16_does_not_overflow(tmp_path: Path) -> None:
    save(tmp_path, np.full((3, 4), 60_000, dtype=np.float16))
    assert aggregate_files(tmp_path, RULES["mean"].build(0.0)).updates[0].tolist() == [60_000.0] * 4  # type: ignore[union-attr]


# --- what is refused ----------------------------------------------------------------------------------


def _entry(kind: object, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def _safetensors(header: object, payload: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def _npy(row: np.ndarray, folder: Path) -> bytes:
    np.save(folder / "whole.npy", row)
    found = (folder / "whole.npy").read_bytes()
    (folder / "whole.npy").unlink()
    return found


GOOD = updates()[0]
HOSTILE_NPY: dict[str, tuple[Callable[[Path], bytes], Verdict]] = {
    "empty": (lambda folder: b"", Verdict.WRONG_TYPE),
    "no array": (lambda folder: b"<html>" * 99, Verdict.WRONG_TYPE),
    "cut off": (lambda folder: _npy(GOOD, folder)[:-1], Verdict.WRONG_SHAPE),
    "cut off in its header": (lambda folder: _npy(GOOD, folder)[:40], Verdict.WRONG_TYPE),
    "more bytes": (lambda folder: _npy(GOOD, folder) + b"0000", Verdict.WRONG_SHAPE),
    "pickle": (lambda folder: _npy(np.array([GOOD, None], dtype=object), folder), Verdict.WRONG_TYPE),
    "whole numbers": (lambda folder: _npy(np.arange(50), folder), Verdict.WRONG_TYPE),
    "double precision": (lambda folder: _npy(GOOD.astype(np.float64), folder), Verdict.WRONG_TYPE),
    "other bytes first": (lambda folder: _npy(GOOD.astype(">f4"), folder), Verdict.WRONG_TYPE),
    "records": (lambda folder: _npy(np.zeros(50, dtype=[("x", "<f4")]), folder), Verdict.WRONG_TYPE),
    "too short": (lambda folder: _npy(GOOD[:-1], folder), Verdict.WRONG_SHAPE),
    "another shape": (lambda folder: _npy(GOOD.reshape(5, 10), folder), Verdict.WRONG_SHAPE),
    "by columns": (lambda folder: _npy(np.asfortranarray(GOOD.reshape(5, 10)), folder), Verdict.WRONG_TYPE),
    "huge": (lambda folder: _npy(GOOD, folder).replace(b"(50,)", b"(9**9,)"), Verdict.WRONG_TYPE),
    "not finite at its end": (lambda folder: _npy(np.append(GOOD[:-1], np.float32("nan")), folder), Verdict.NOT_FINITE),
    "infinite": (lambda folder: _npy(np.append(np.float32("-inf"), GOOD[1:]), folder), Verdict.NOT_FINITE),
}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("fault", HOSTILE_NPY)
def test_a_malformed_file_gets_a_verdict_and_the_others_count(fault: str, tmp_path: Path) -> None:
    make, verdict = HOSTILE_NPY[fault]
    save(tmp_path, updates())
    (tmp_path / "00.npy").write_bytes(make(tmp_path))
    (tmp_path / "11.npy").write_bytes(make(tmp_path))
    found = aggregate_files(tmp_path, SpectralFilter(3))
    assert [found.verdicts[f"{i:02}.npy"] for i in range(12)] == [verdict, *[Verdict.ACCEPTED] * 10, verdict]
    assert set(found.faults) == {"00.npy", "11.npy"}
    assert all(len(line) < 120 and "\n" not in line for line in found.faults.values())
    assert found.counts == (10,)
    for name in found.faults:
        (tmp_path / name).unlink()
    assert found.updates[0].tobytes() == aggregate_files(tmp_path, SpectralFilter(3)).updates[0].tobytes()  # type: ignore[union-attr]


HOSTILE_SAFETENSORS: dict[str, tuple[bytes, Verdict]] = {
    "no length": (b"\x01", Verdict.WRONG_TYPE),
    "a header longer than the file": (_safetensors({}, length=1 << 20), Verdict.WRONG_TYPE),
    "a header of 2⁶³ bytes": (_safetensors({}, length=1 << 63), Verdict.WRONG_TYPE),
    "no JSON": (_safetensors(b"{" * 40), Verdict.WRONG_TYPE),
    "deep JSON": (_safetensors(b"[" * 100_000), Verdict.WRONG_TYPE),
    "a list": (_safetensors([1, 2]), Verdict.WRONG_TYPE),
    "no UTF-8": (_safetensors(b'"\xff\xff"'), Verdict.WRONG_TYPE),
    "no entry": (_safetensors({"w": 3}), Verdict.WRONG_TYPE),
    "a number for a kind": (_safetensors({"w": _entry(3, [5], 0, 20)}, bytes(20)), Verdict.WRONG_TYPE),
    "a list for a kind": (_safetensors({"w": _entry(["F32"], [5], 0, 20)}, bytes(20)), Verdict.WRONG_TYPE),
    "whole numbers": (_safetensors({"w": _entry("I32", [5], 0, 20)}, bytes(20)), Verdict.WRONG_TYPE),
    "a negative shape": (_safetensors({"w": _entry("F32", [-5, -1], 0, 20)}, bytes(20)), Verdict.WRONG_TYPE),
    "a fraction in a shape": (_safetensors({"w": _entry("F32", [5.0], 0, 20)}, bytes(20)), Verdict.WRONG_TYPE),
    "a negative place": (_safetensors({"w": _entry("F32", [5], -20, 0)}, bytes(20)), Verdict.WRONG_TYPE),
    "a gap": (_safetensors({"w": _entry("F32", [5], 4, 24)}, bytes(24)), Verdict.WRONG_TYPE),
    "an overlap": (
        _safetensors({"v": _entry("F32", [4], 0, 16), "w": _entry("F32", [5], 0, 20)}, bytes(36)),
        Verdict.WRONG_TYPE,
    ),
    "a place that does not fit": (_safetensors({"w": _entry("F32", [5], 0, 24)}, bytes(24)), Verdict.WRONG_TYPE),
    "a place past the end": (_safetensors({"w": _entry("F32", [5], 0, 20)}, bytes(16)), Verdict.WRONG_SHAPE),
    "a shape past any memory": (_safetensors({"w": _entry("F32", [1 << 60], 0, 1 << 62)}), Verdict.WRONG_SHAPE),
    "another name": (_safetensors({"v": _entry("F32", [5], 0, 20)}, bytes(20)), Verdict.WRONG_SHAPE),
    "one more": (
        _safetensors({"w": _entry("F32", [5], 0, 20), "x": _entry("F32", [1], 20, 24)}, bytes(24)),
        Verdict.WRONG_SHAPE,
    ),
    "half precision": (_safetensors({"w": _entry("F16", [5], 0, 10)}, bytes(10)), Verdict.WRONG_TYPE),
    "another shape": (_safetensors({"w": _entry("F32", [5, 1], 0, 20)}, bytes(20)), Verdict.WRONG_SHAPE),
    "not finite": (_safetensors({"w": _entry("F32", [5], 0, 20)}, b"\xff" * 20), Verdict.NOT_FINITE),
}


@pytest.mark.parametrize("fault", HOSTILE_SAFETENSORS)
def test_a_malformed_safetensors_file_gets_a_verdict(fault: str, tmp_path: Path) -> None:
    content, verdict = HOSTILE_SAFETENSORS[fault]
    for i in range(3):
        save_file({"w": np.full(5, i, dtype=np.float32)}, tmp_path / f"{i}.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(content)
    found = aggregate_files(tmp_path, Median())
    assert found.verdicts["bad.safetensors"] == verdict
    assert found.counts == (3,)
    assert found.updates[0]["w"].tolist() == [1.0] * 5  # type: ignore[index,call-overload]
    assert len(found.faults["bad.safetensors"]) < 160


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    save(tmp_path, updates(3))
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "lost.npy").symlink_to(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("is not looked at")
    found = aggregate_files(tmp_path, Median())
    assert found.faults == {
        "pipe.npy": "cannot be read: not a regular file",
        "folder.npy": "cannot be read: Is a directory",
        "lost.npy": "cannot be read: No such file or directory",
    }
    assert found.counts == (3,)


def test_all_rows_with_a_nan_are_found_in_one_more_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byzantine clients put a NaN into shards of their own, and do not make the server read everything again each."""
    rows = updates(24, 48)
    for i in range(8):
        rows[i, 6 * i] = np.nan
    save(tmp_path, rows)
    monkeypatch.setattr(columns_module, "READ_NUMBERS", 24 * 6)
    read, reading = [], FileRows.__call__

    def counted(self: FileRows, chosen: Ints, start: int, stop: int) -> np.ndarray:
        read.append(len(chosen) * (stop - start))
        return reading(self, chosen, start, stop)

    monkeypatch.setattr(FileRows, "__call__", counted)
    found = aggregate_files(tmp_path, SpectralFilter(3))
    assert found.counts == (16,)
    assert sum(read) <= 4 * rows.size  # at most once in vain, once to find them, and twice to aggregate


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    rows = updates()
    save(tmp_path, rows)

    class Truncating(Aggregator):
        takes_shards = True

        def aggregate(self, shards: columns_module.Sharded) -> np.ndarray:
            found = Median()(shards)
            with (tmp_path / "03.npy").open("r+b") as file:
                file.truncate(140)
            (tmp_path / "04.npy").unlink(missing_ok=True)
            return found + Median()(shards)

    found = aggregate_files(tmp_path, Truncating())
    assert found.verdicts["03.npy"] == Verdict.WRONG_SHAPE
    assert found.faults["03.npy"] == "has become shorter while it was read"
    assert found.faults["04.npy"] == "cannot be read: No such file or directory"
    assert found.counts == (10,)
    assert np.array_equal(found.updates[0], 2 * Median()(np.delete(rows, [3, 4], axis=0)))  # type: ignore[arg-type]


def test_the_layout_is_that_of_most_files_or_of_the_model(tmp_path: Path) -> None:
    save(tmp_path, updates(5))
    for i in range(4):
        np.save(tmp_path / f"other-{i}.npy", np.zeros(7, dtype=np.float32))
    assert aggregate_files(tmp_path, Median()).counts == (5,)
    assert aggregate_files(tmp_path, Median(), like=tmp_path / "other-0.npy").counts == (4,)
    one, other = (describe(tmp_path / name).layout for name in ("00.npy", "other-0.npy"))
    with pytest.raises(Malformed, match=r"has shape \(7,\), expected \(50,\)"):
        check_layout(other, one)


def test_a_hostile_name_does_not_fill_the_screen(tmp_path: Path) -> None:
    layout = (Field("w" * 10_000, (3,), "F32"),)
    with pytest.raises(Malformed) as caught:
        check_layout(layout, (layout[0]._replace(kind="F16"),))
    assert len(caught.value.reason) < 120


# --- mistakes of the caller ---------------------------------------------------------------------------


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"updates: .*nowhere is not a folder"):
        aggregate_files(tmp_path / "nowhere", Median())
    with pytest.raises(ValueError, match=r"updates: no \.npy or \.safetensors file"):
        aggregate_files(tmp_path, Median())
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"updates: no file holds an update; the first has no valid \.npy header"):
        aggregate_files(tmp_path, Median())
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    with pytest.raises(ValueError, match="updates: no file holds an update"):
        aggregate_files(tmp_path, Median())
    save(tmp_path, updates(3))
    with pytest.raises(ValueError, match="neither"):
        aggregate_files([tmp_path / "a.txt"], Median())
    with pytest.raises(ValueError, match="must differ"):
        aggregate_files([tmp_path / "00.npy", tmp_path / "." / "00.npy"], Median())
    with pytest.raises(ValueError, match="at least one file"):
        aggregate_files([], Median())
    with pytest.raises(ValueError, match="clusters must be at least 1, got 0"):
        aggregate_files(tmp_path, Median(), clusters=0)
    with pytest.raises(ValueError, match="does not aggregate by columns"):
        aggregate_files(tmp_path, as_aggregator(lambda rows: rows[0]))
    with pytest.raises(ValueError, match=r"like: nothing\.npy cannot be read: No such file"):
        aggregate_files(tmp_path, Median(), like=tmp_path / "nothing.npy")


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    save(tmp_path, updates())
    (tmp_path / "out" / "cluster-0.npy").mkdir(parents=True)  # in the way
    with pytest.raises(OSError, match="cluster-0"):
        aggregate_files(tmp_path, Median(), out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cluster-0.npy"]


def test_rows_that_are_not_finite_are_named(tmp_path: Path) -> None:
    rows = updates(3, 9)
    rows[1, 8] = np.inf
    save(tmp_path, rows)
    files = [describe(tmp_path / f"{i:02}.npy") for i in range(3)]
    read = FileRows(files, files[0].layout)
    assert read(np.array([2, 1]), 2, 8).tobytes() == rows[[2, 1], 2:8].tobytes()
    with pytest.raises(Refused) as caught:
        read(np.arange(3), 2, 9)
    assert list(caught.value.faults) == [1]
