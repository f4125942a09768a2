"""First centres that ask nobody: random, near the truth, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from coterie._src.data import mixed_regression
from coterie._src.init import bernoulli, from_file, gaussian, warm


def test_random_and_warm_starts(rng: np.random.Generator) -> None:
    np.testing.assert_allclose(np.linalg.norm(bernoulli(4, 50, rng), axis=1), 1.0)
    # ‖N(0, I/d)‖ has standard error about 1/√(2d) = 0.05 at d = 200
    assert np.all(np.abs(np.linalg.norm(gaussian(6, 200, rng), axis=1) - 1) < 5 * 0.05)
    for clusters in (1, 3):
        drawn = mixed_regression(rng, clients=6, clusters=clusters, samples=2, dim=9, byzantine=0.0, dtype=np.float64)
        assert drawn.truth is not None
        away = np.linalg.norm(warm(drawn.truth, 0.25, rng) - drawn.truth.centres, axis=1)
        gap = drawn.truth.separation if clusters > 1 else 1.0
        np.testing.assert_allclose(away, 0.25 * gap, rtol=1e-9)


def test_centres_from_a_file(tmp_path: Path, rng: np.random.Generator) -> None:
    centres = rng.standard_normal((2, 3))
    np.save(tmp_path / "c.npy", centres)
    np.savetxt(tmp_path / "c.csv", centres, delimiter=",")
    save_file({"centres": centres, "other": np.zeros(1)}, tmp_path / "c.safetensors")
    save_file({"brifca-median": centres.astype(np.float32)}, tmp_path / "one.safetensors")
    save_file({"ifca": centres, "brifca-median": np.zeros((2, 3))}, tmp_path / "run.safetensors")
    for name in ("run.safetensors#ifca", "c.npy", "c.csv", "c.safetensors", "one.safetensors"):
        np.testing.assert_allclose(from_file(tmp_path / name, 2, 3), centres, rtol=1e-6)


def test_bad_files_of_centres(tmp_path: Path) -> None:
    np.save(tmp_path / "shape.npy", np.zeros((3, 3)))
    np.save(tmp_path / "nan.npy", np.full((2, 3), np.nan))
    np.save(tmp_path / "text.npy", np.full((2, 3), "a"))
    np.save(tmp_path / "pickle.npy", np.full((2, 3), None), allow_pickle=True)
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 40)
    (tmp_path / "words.csv").write_text("a,b,c\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "centres.txt").write_text("1 2 3")
    save_file({"a": np.zeros(1), "b": np.zeros(1)}, tmp_path / "two.safetensors")
    for name in ("shape.npy", "nan.npy", "text.npy", "pickle.npy", "noise.safetensors", "words.csv",
                 "empty.csv", "centres.txt", "two.safetensors", "missing.npy"):  # fmt: skip
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            from_file(tmp_path / name, 2, 3)
