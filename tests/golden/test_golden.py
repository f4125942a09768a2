"""The numbers do not move: what small runs of everything gave before is what they give now.

On the machine that the results were written on, bit for bit; elsewhere sums may be added up in another order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from golden.cases import FILE, cases, digest, machine

ROUNDING_ERRORS = ("as-published",)
"""Cases whose numbers are rounding errors, the inverse of a singular matrix in float32: each processor has its own."""
DECIDED_BY_ROUNDING = ("numpy alie", "torch alie", "adam", "disguised", "hop", "sweep")
"""Cases in which `coterie`, given 20 samples of 24 features, takes a discrete decision by the last digits of a float32:
which of two centres comes first, which of two equal Byzantine replies is filtered. Each processor has its own."""
PINNED = json.loads(FILE.read_text(encoding="utf-8"))
CASES = dict(cases())


def assert_close(found: Any, expected: Any, place: str) -> None:
    """Equal in everything but the last digits of floats."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for name in expected:
            if name != "bytes":
                assert_close(found[name], expected[name], f"{place}: {name}")
    elif (isinstance(expected, list) and expected and isinstance(expected[0], float)) or isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), place
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_close(one, other, f"{place}[{i}]")
    else:
        assert found == expected, place


def without(method: str, result: Any) -> Any:
    """The result without what one method found."""
    if isinstance(result, dict):
        return {name: without(method, rest) for name, rest in result.items() if name != method}
    if isinstance(result, list):
        return [without(method, one) for one in result if not (isinstance(one, dict) and one.get("method") == method)]
    return result


def test_every_case_is_pinned() -> None:
    assert list(CASES) == list(PINNED["results"])
    assert all(digest(found) == PINNED["sha256"][name] for name, found in PINNED["results"].items())


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_do_not_move(name: str) -> None:
    if machine() != PINNED["machine"] and name in ROUNDING_ERRORS:
        pytest.skip("rounding errors of another processor")
    found, expected = json.loads(json.dumps(CASES[name]())), PINNED["results"][name]
    if machine() != PINNED["machine"] and name in DECIDED_BY_ROUNDING:
        found, expected = without("coterie", found), without("coterie", expected)
    assert_close(found, expected, name)
    if machine() == PINNED["machine"]:
        assert digest(found) == PINNED["sha256"][name], f"{name}: within rounding, but not the same bits"
