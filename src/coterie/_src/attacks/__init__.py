"""Attacks: what Byzantine clients send instead of their honest replies.

An attack combines a *target* (the cluster that the Byzantine clients claim) and a *payload* (the updates that they send
there). Both see everything, as an omniscient adversary does, and only the rows of Byzantine clients are replaced. The
strength of an attack is a number, the one that its authors published, or the one that moves the server's rule farthest.
"""

from coterie._src.attacks import crafted, false_optimum, hessians, payloads, search, targets, tilt
from coterie._src.attacks.attack import WORST, Attack
from coterie._src.attacks.base import Entry, Forgery, Payload, Prospect, Question, Target, View, payload, target
from coterie._src.attacks.crafted import alie, noisy_alie
from coterie._src.attacks.payloads import data_poisoning, paper, sign_flip
from coterie._src.attacks.targets import own, smallest

PAYLOADS: tuple[Payload, ...] = (
    payloads.paper,
    payloads.sign_flip,
    payloads.gaussian,
    payloads.constant,
    payloads.garbage,
    payloads.data_poisoning,
    payloads.inner_product,
    crafted.alie,
    crafted.noisy_alie,
    crafted.min_max,
    crafted.min_sum,
    crafted.mimic,
    crafted.trimmed_mean_attack,
    payloads.label_flip,
    payloads.curvature_lies,
    payloads.scaled_targets,
    payloads.noisy_targets,
    crafted.merge,
    crafted.cross_mimic,
    crafted.seed_capture,
    crafted.phantom,
    tilt.tilt,
    search.search,
    false_optimum.false_optimum,
    *hessians.PAYLOADS,
)
"""The registry of payloads: one line for each."""

TARGETS: tuple[Target, ...] = (targets.own, targets.smallest, targets.emptiest, targets.random, targets.rotating)
"""The registry of targets."""

__all__ = [
    "PAYLOADS",
    "TARGETS",
    "WORST",
    "Attack",
    "Entry",
    "Forgery",
    "Payload",
    "Prospect",
    "Question",
    "Target",
    "View",
    "alie",
    "data_poisoning",
    "noisy_alie",
    "own",
    "paper",
    "payload",
    "sign_flip",
    "smallest",
    "target",
]
