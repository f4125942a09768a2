"""What Byzantine clients send instead.

An attack is two separate choices that compose: a *target* (which cluster the Byzantine clients claim) and a *payload*
(what they send there). Both see everything an omniscient adversary would, and only the rows of Byzantine clients are
rewritten. How strong it is may be a number, the attack's own published rule, or whatever hurts the server's rule most.
"""

from coterie._src.attacks.attack import WORST, Attack
from coterie._src.attacks.base import Forgery, Payload, Question, Target, View
from coterie._src.attacks.crafted import (
    alie,
    cross_mimic,
    disguised,
    merge,
    mimic,
    min_max,
    min_sum,
    phantom,
    seed_capture,
    trimmed_mean_attack,
)
from coterie._src.attacks.payloads import constant, garbage, gaussian, inner_product, label_flip, none, paper, sign_flip
from coterie._src.attacks.targets import emptiest, hop, own, random, smallest

__all__ = [
    "WORST",
    "Attack",
    "Forgery",
    "Payload",
    "Question",
    "Target",
    "View",
    "alie",
    "constant",
    "cross_mimic",
    "disguised",
    "emptiest",
    "garbage",
    "gaussian",
    "hop",
    "inner_product",
    "label_flip",
    "merge",
    "mimic",
    "min_max",
    "min_sum",
    "none",
    "own",
    "paper",
    "phantom",
    "random",
    "seed_capture",
    "sign_flip",
    "smallest",
    "trimmed_mean_attack",
]
