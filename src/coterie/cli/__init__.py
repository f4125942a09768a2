"""The command line. Commands import what they need when they run, so that --help is instant."""

from coterie.cli import paper, run, sweep
from coterie.cli.app import app, entry

__all__ = ["app", "entry", "paper", "run", "sweep"]
