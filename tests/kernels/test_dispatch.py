"""Which form of a kernel runs, and how functions are compiled."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie._src.kernels import dispatch
from coterie._src.kernels.compiling import compiled
from coterie._src.kernels.dispatch import Kernel


def kernel() -> Kernel:
    """Worth compiling from 3 values on. The compiled form is another function with as many arguments."""

    def reference(values: list[int]) -> str:
        return "reference"

    return Kernel(reference, "dispatch:choice_of_compiled", lambda values: len(values) >= 3)


@pytest.fixture
def compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "choice_of_compiled", lambda values: "compiled", raising=False)


@pytest.mark.usefixtures("compiled_form")
@pytest.mark.parametrize(
    ("chosen", "few", "many"),
    [
        ("auto", "reference", "compiled"),
        ("compiled", "compiled", "compiled"),
        ("reference", "reference", "reference"),
    ],
)
def test_the_choice_is_followed(chosen: str, few: str, many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "CHOICE", chosen)
    found = kernel()
    assert (found([1]), found([1, 2, 3])) == (few, many)
    always = Kernel(found.reference, found.compiled)
    assert always([1]) == ("reference" if chosen == "reference" else "compiled")


@pytest.mark.parametrize("chosen", [None, *dispatch.CHOICES])
def test_the_environment_chooses(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if chosen is None:
        monkeypatch.delenv("COTERIE_KERNELS", raising=False)
    else:
        monkeypatch.setenv("COTERIE_KERNELS", chosen)
    assert dispatch._choice() == (chosen or "auto")


def test_a_choice_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_KERNELS", "fast")
    with pytest.raises(ValueError, match='COTERIE_KERNELS must be auto, compiled, reference, got "fast"'):
        dispatch._choice()


@pytest.mark.parametrize(("chosen", "loaded"), [("reference", False), ("auto", True)])
def test_numba_is_loaded_by_the_first_kernel_that_needs_it(chosen: str, loaded: bool) -> None:
    program = (
        "import sys, numpy as np, coterie as ct\n"
        "ct.Median()(np.zeros((3, 2)))\n"  # few float64 values
        "assert 'numba' not in sys.modules\n"
        "ct.Median()(np.zeros((3, 2), np.float32))\n"
        "print('numba' in sys.modules)"
    )
    environment = {**os.environ, "COTERIE_KERNELS": chosen}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == str(loaded)


def test_a_compiled_function_is_compiled_anew_when_its_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever function of the file has changed: one that it calls, here."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "compiled_part.py"
    found, hits = [], []
    for age, number in enumerate((1, 1, 10)):
        file.write_text(
            "from coterie._src.kernels.compiling import compiled\n\n"
            "@compiled\ndef twice(x):\n    return plus(x) + plus(x)\n\n"
            f"@compiled\ndef plus(x):\n    return x + {number}\n"
        )
        os.utime(file, ns=(number * 10**9, number * 10**9))  # as old as the number says
        monkeypatch.delitem(sys.modules, "compiled_part", raising=False)
        importlib.invalidate_caches()
        twice = importlib.import_module("compiled_part").twice
        found.append(twice(age))
        hits.append(sum(twice.stats.cache_hits.values()))
    monkeypatch.delitem(sys.modules, "compiled_part")
    assert found == [2, 4, 24]
    assert hits == [0, 1, 0]


def test_a_function_without_a_file_is_compiled_without_a_cache() -> None:
    names: dict[str, object] = {}
    exec("def plus(x):\n    return x + 1", names)
    assert compiled(names["plus"])(np.float64(2)) == 3.0  # type: ignore[arg-type]
