"""The application, and what all commands share: options, Ctrl-C, error messages."""

from __future__ import annotations

import atexit
import gc
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from coterie import __version__

if TYPE_CHECKING:
    from coterie._src.experiments import Config

GARBAGE_THRESHOLD = 50_000
"""New objects between two searches for reference cycles: imports create many objects, and hardly any in cycles."""

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Byzantine-robust clustered federated learning: find the clusters of clients and learn one model "
    "for each, although some clients are Byzantine and send arbitrary updates.\n\n"
    "Start with `coterie run`; `coterie config` explains every key.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the name of the command."""


ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file; without one, the default problem (see `coterie config`).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key, e.g. `--set problem.dim=50`. Repeatable."),
]
Tracked = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME:TARGET",
        help="Also send options, metrics by round and results to mlflow:URI, tensorboard:DIR or jsonl:FILE. "
        "Repeatable.",
    ),
]


class CtrlC:
    """A context that records the first Ctrl-C, so that a run stops at a safe point; a second one interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Callable[[], bool]:
        self.before = signal.signal(signal.SIGINT, self._ask)
        return lambda: self.asked

    def _ask(self, *_: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)


def print_doubts(configs: Sequence[Config]) -> None:
    """Print a note on stderr for settings that are valid but probably not intended, one for each kind of doubt."""
    from coterie._src.experiments.doubts import doubts

    for line in {kind: line for config in configs for kind, line in doubts(config).items()}.values():
        print(f"note: {line}", file=sys.stderr)


def dated_folder() -> Path:
    """The default folder of results."""
    name = datetime.now().strftime("%Y%m%d-%H%M%S")
    folders = (Path("runs") / f"{name}{suffix}" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    return next(folder for folder in folders if not folder.exists())


def command_line() -> str:
    """The command that was given."""
    return shlex.join(["coterie", *sys.argv[1:]])


def output_console() -> Console:
    """A console on standard output, as wide as the terminal; without a terminal, wide enough for any table."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def entry() -> None:
    """The entry point of the `coterie` command; invalid input gives one line on stderr and exit code 2."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    atexit.register(gc.freeze)  # no search through all that is left when the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not fail on a terminal that cannot print α
    warnings.filterwarnings("default", r".* is now called ", DeprecationWarning)
    warnings.filterwarnings("always", r".*; the run goes on without this tracker", RuntimeWarning)
    warnings.showwarning = lambda message, *_: print(f"note: {message}", file=sys.stderr)
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except typer.Abort:
        _fail("interrupted", 130)
    except ValueError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except MemoryError:
        _fail("not enough memory for this problem; lower problem.clients, problem.samples or problem.dim", 1)
    except Exception as error:
        usage_error: Any = error
        if not hasattr(usage_error, "format_message"):
            raise
        _fail_on_usage(usage_error)


def _fail_on_usage(error: Any) -> None:
    """Print an error of the command line and exit; error: the parser's, whose class differs between versions."""
    command = getattr(getattr(error, "ctx", None), "command_path", "coterie")
    sentences = re.split(r"(?<=[.?])\s+", " ".join(error.format_message().split()))
    message = " ".join(dict.fromkeys(sentences))  # some parsers repeat a suggestion
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        raise SystemExit(error.exit_code)
    _fail(f"{message.rstrip('.')} (see `{command} --help`)", error.exit_code)


def _fail(message: str, code: int) -> None:
    print(f"coterie: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
