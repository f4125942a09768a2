"""The command line. Commands import what they need when they run, so that --help is instant."""

from coterie.cli import run, sweep
from coterie.cli.app import app, entry

__all__ = ["app", "entry", "run", "sweep"]
