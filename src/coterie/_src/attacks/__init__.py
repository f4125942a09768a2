"""What Byzantine clients send instead.

An attack is two separate choices that compose: a *target* (which cluster the Byzantine clients claim) and a *payload*
(what they send there). Both see everything an omniscient adversary would, and only the rows of Byzantine clients are
rewritten. How strong it is may be a number, the attack's own published rule, or whatever hurts the server's rule most.
"""

from coterie._src.attacks import crafted, payloads, targets
from coterie._src.attacks.attack import WORST, Attack
from coterie._src.attacks.base import Entry, Forgery, Payload, Question, Target, View, payload, target
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
    crafted.merge,
    crafted.cross_mimic,
    crafted.seed_capture,
    crafted.phantom,
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
