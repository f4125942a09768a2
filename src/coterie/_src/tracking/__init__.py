"""Trackers: callbacks that send options, metrics by round and results to another place."""

from collections.abc import Callable

from coterie._src.tracking.base import Tracker
from coterie._src.tracking.json_lines import JSONLines
from coterie._src.tracking.mlflow import MLflow
from coterie._src.tracking.tensorboard import TensorBoard

TRACKERS: dict[str, Callable[[str], Tracker]] = {kind.name: kind for kind in (MLflow, TensorBoard, JSONLines)}


def tracker(text: str) -> Tracker:
    """The tracker that `--track NAME:TARGET` names.

    >>> tracker("jsonl:rounds.jsonl").target
    'rounds.jsonl'
    """
    name, _, target = text.partition(":")
    if name not in TRACKERS or not target:
        raise ValueError(f"track: must be mlflow:URI, tensorboard:DIR or jsonl:FILE, got {text}")
    return TRACKERS[name](target)


__all__ = ["JSONLines", "MLflow", "TensorBoard", "Tracker", "tracker"]
