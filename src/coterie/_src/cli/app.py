"""What all commands share: the application, options, Ctrl-C, and how a mistake is told."""

from __future__ import annotations

import re
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

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Byzantine-robust clustered federated learning: find the clusters of clients and learn one model "
    "for each, while some of the clients lie.\n\nStart with `coterie run`; `coterie config` explains every key.",
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
    """Read the options that stand before the command."""


ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file; without one, the default problem (see `coterie config`).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key, e.g. `--set problem.dim=50`. Repeatable."),
]


class CtrlC:
    """Turns the first Ctrl-C into a question that the run asks at safe points; a second one ends at once."""

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


def tell_doubts(configs: Sequence[Config]) -> None:
    """One line on stderr for each thing that is allowed, but hardly meant; the last of a kind for many."""
    from coterie._src.experiments.doubts import doubts

    for line in {kind: line for config in configs for kind, line in doubts(config).items()}.values():
        print(f"note: {line}", file=sys.stderr)


def dated_folder() -> Path:
    """Where results go when the user names no place."""
    name = datetime.now().strftime("%Y%m%d-%H%M%S")
    places = (Path("runs") / f"{name}{suffix}" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    return next(place for place in places if not place.exists())


def output_console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def entry() -> None:
    """What the `coterie` command runs: a bad input is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without α must not cost the results
    warnings.filterwarnings("default", r".* is now called ", DeprecationWarning)
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
        mistake: Any = error
        if not hasattr(mistake, "format_message"):
            raise
        _fail_to_understand(mistake)


def _fail_to_understand(mistake: Any) -> None:
    """Say what is wrong with the command line; mistake: the parser's, whose class differs from version to version."""
    place = getattr(getattr(mistake, "ctx", None), "command_path", "coterie")
    sentences = re.split(r"(?<=[.?])\s+", " ".join(mistake.format_message().split()))
    message = " ".join(dict.fromkeys(sentences))  # some parsers suggest the same thing twice
    if type(mistake).__name__ == "NoArgsIsHelpError":
        mistake.show()
        raise SystemExit(mistake.exit_code)
    _fail(f"{message.rstrip('.')} (see `{place} --help`)", mistake.exit_code)


def _fail(message: str, code: int) -> None:
    print(f"coterie: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
