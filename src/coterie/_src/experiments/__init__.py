"""Validated configurations, the tables from names to functions, trials, and what is kept of a run."""

from coterie._src.experiments.config import Config, default_config
from coterie._src.experiments.engines import Interrupted, run_trials
from coterie._src.experiments.outcome import MethodResult, TrialResult
from coterie._src.experiments.run_folder import RunFolder
from coterie._src.experiments.setup import check
from coterie._src.experiments.summary import METRICS, run_title, summarise
from coterie._src.experiments.toml import as_toml, parse_config, read_config
from coterie._src.experiments.trial import run_trial

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
    "run_title",
    "run_trial",
    "run_trials",
    "summarise",
]
