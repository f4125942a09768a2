"""What a federation learns, as its state says it: another configuration may not go on from it, a later version may."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from coterie._src.experiments.config import Config

SYNTHETIC = {"kind", "clusters", "dtype", "clients", "samples", "dim", "byzantine", "shares"}
KEYS_OF_0_1_0 = {
    "mixed-regression": SYNTHETIC | {"noise_variance"},
    "gaussian-means": SYNTHETIC | {"noise_variance"},
    "poisson-means": SYNTHETIC,
    "folder": {
        "kind", "clusters", "dtype", "task", "target", "columns", "offset", "scale", "classes", "intercept",
    },
}  # fmt: skip
"""The keys of a problem in version 0.1.0, whose states have a hash of them."""


def identity_of(config: Config, method: str, features: int) -> str:
    """Return what is learnt, as JSON; it does not depend on rounds, deadlines or the number of clients."""
    problem = config.problem.model_dump(mode="json", exclude={"path"})
    given = config.problem.model_dump(mode="json", exclude={"path"}, exclude_defaults=True)
    learnt = {"problem": problem, "method": method, "features": features, "seed": config.run.seed}
    return json.dumps({**learnt, "not_default": sorted(given)}, sort_keys=True)


def differences(saved: str, present: str) -> list[str]:
    """Return the names of what differs between the identity of a state and the present one; empty: it may go on.

    A key that a later version has added to a problem differs only if it is not at its default, and one that a later
    version no longer has is not compared. Identities that are no JSON are compared as they are.

    >>> old = '{"problem": {"dim": 3}, "not_default": [], "method": "coterie"}'
    >>> new = '{"problem": {"dim": 4, "tilt": 1}, "not_default": ["tilt"], "method": "coterie"}'
    >>> differences(old, new)
    ['problem.dim', 'problem.tilt']
    """
    if saved in ("", present):
        return []
    now = _as_dict(present)
    if now is None:
        return ["identity"]
    before = _as_dict(saved)
    if before is None:
        return [] if saved in _hashes(now) else ["identity"]
    old, new = before["problem"], now["problem"]
    changed = [f"problem.{name}" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    added = [f"problem.{name}" for name in sorted(new.keys() - old.keys()) if name in now["not_default"]]
    others = [name for name in ("method", "features", "seed") if before.get(name) != now.get(name)]
    return changed + added + others


def _as_dict(identity: str) -> dict[str, Any] | None:
    try:
        found = json.loads(identity)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("problem"), dict) else None


def _hashes(now: dict[str, Any]) -> set[str]:
    """The identities that version 0.1.0, and what came after it before the next version, gave to the present one."""
    problem = now["problem"]
    known = KEYS_OF_0_1_0.get(problem.get("kind"), set())
    found = set()
    for kept in (problem, {name: value for name, value in problem.items() if name in known}):
        learnt = kept, now["method"], now["features"], now["seed"]
        found.add(hashlib.sha256(json.dumps(learnt, sort_keys=True).encode()).hexdigest()[:16])
    return found
