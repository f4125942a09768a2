"""The helpers that every station needs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie._src.arrays import row_distances


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_distances_of_rows_to_rows(dtype: type, rng: np.random.Generator) -> None:
    rows, others = rng.standard_normal((2, 5, 7)).astype(dtype)
    expected = np.linalg.norm(rows.astype(np.float64) - others, axis=1)
    tolerance = 1e-2 if dtype is np.float16 else 1e-6
    np.testing.assert_allclose(row_distances(rows, others), expected, rtol=tolerance)
    tensors = row_distances(torch.from_numpy(rows), torch.from_numpy(others))
    np.testing.assert_allclose(tensors, expected, rtol=tolerance)
    np.testing.assert_allclose(row_distances(rows, others[:1])[0], expected[0], rtol=tolerance)  # or whatever fits


def test_a_compiled_function_is_compiled_anew_when_one_that_it_calls_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    begin = "from coterie._src.arrays import compiled\n"
    (tmp_path / "calling_part.py").write_text(
        begin + "from called_part import plus\n\n@compiled\ndef twice(x):\n    return later(x) + later(x)\n\n"
        "@compiled\ndef later(x):\n    return plus(x)\n"
    )
    found, hits = [], []
    for age, number in enumerate((1, 1, 10)):
        called = tmp_path / "called_part.py"
        called.write_text(begin + f"\n@compiled\ndef plus(x):\n    return x + {number}\n")
        os.utime(called, ns=(number * 10**9, number * 10**9))  # as old as the number says
        for name in ("called_part", "calling_part"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        twice = importlib.import_module("calling_part").twice
        found.append(twice(age))
        hits.append(sum(twice.stats.cache_hits.values()))
    assert found == [2, 4, 24]
    assert hits == [0, 1, 0]
    for name in ("called_part", "calling_part"):
        sys.modules.pop(name, None)
