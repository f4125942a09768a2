"""Validated configurations, the tables from names to functions, trials, and what is kept of a run."""

from coterie.experiments.config import Config, default_config
from coterie.experiments.reading import as_toml, parse_config, read_config
from coterie.experiments.run import Interrupted, run_trials
from coterie.experiments.store import RunFolder
from coterie.experiments.summary import METRICS, summarise
from coterie.experiments.trial import MethodResult, TrialResult, check, run_trial

__all__ = [
    "METRICS",
    "Config",
    "Interrupted",
    "MethodResult",
    "RunFolder",
    "TrialResult",
    "as_toml",
    "check",
    "default_config",
    "parse_config",
    "read_config",
    "run_trial",
    "run_trials",
    "summarise",
]
