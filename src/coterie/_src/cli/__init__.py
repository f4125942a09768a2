"""The command line. Commands import what they need when they run, so that --help is instant."""

from coterie._src.cli import (
    aggregate,
    audit,
    federate,
    federate_server,
    federate_sites,
    plan,
    report,
    reproduce,
    results,
    run,
    site,
    sweep,
    watch,
)
from coterie._src.cli.app import app, entry

__all__ = [
    "aggregate",
    "app",
    "audit",
    "entry",
    "federate",
    "federate_server",
    "federate_sites",
    "plan",
    "report",
    "reproduce",
    "results",
    "run",
    "site",
    "sweep",
    "watch",
]

ORDER = (
    "run", "config", "list_names", "report", "watch", "sweep", "results", "plot", "arena", "reproduce", "plan", "audit",
    "aggregate",
)  # fmt: skip
"""As --help lists them: what one meets first stands first."""

app.registered_commands.sort(key=lambda command: ORDER.index(getattr(command.callback, "__name__", "")))
