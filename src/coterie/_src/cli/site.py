"""`coterie site`: for the administrator of a site of a federation."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from coterie._src.cli.app import app, output_console
from coterie._src.cli.federate import needing_flower
from coterie._src.experiments.printable import printable

site = typer.Typer(
    no_args_is_help=True,
    help="For the administrator of a site: what it was asked, and what it would send; see docs/policy.md.",
)
app.add_typer(site, name="site")
POLICY = "site.toml"
Folder = Annotated[Path, typer.Argument(help="The site's folder, in which its site.toml is.")]


@site.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(help="The site's folder, as it came from the server, or a new one.")
    ] = Path(),
    name: Annotated[str | None, typer.Option(help="The name of the site. Default: that of the folder.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Make a further key, to take the place of the first.")] = False,
    use_next: Annotated[
        bool, typer.Option("--use-next", help="Put the further key in the place of the first.")
    ] = False,
) -> None:
    """Make this site's key. Its private half stays here; send the public half to the server's administrator.

    To renew it: `--renew`, send the new public half, and when the server's administrator has added it, `--use-next` and
    start again. Until then the old key is valid.
    """
    with needing_flower():
        from coterie._src.federation.site_keys import make_key, use_next_key
    if use_next:
        use_next_key(folder)
        print("The next start of this site uses the new key.")
        return
    file, found = make_key(folder, folder.resolve().name if name is None else name, renew)
    print(f"Send {file} to the server's administrator, and say by telephone: {found}")


@site.command("log")
def show_log(
    folder: Folder = Path(),
    last: Annotated[int, typer.Option(help="How many entries to show, the newest last.")] = 40,
) -> None:
    """Show all that the site was asked, and what it answered or refused."""
    with needing_flower():
        from coterie._src.federation.privacy import epsilon_of
        from coterie._src.federation.site_log import ANSWERED, LOG, SiteLog
        from coterie._src.federation.site_policy import SitePolicy, read_policy
    if not (folder / LOG).is_file():
        raise ValueError(f"{folder}: no question has come yet (it has no {LOG})")
    policy = read_policy(folder / POLICY) if (folder / POLICY).is_file() else SitePolicy()
    log = SiteLog(folder / LOG)
    totals = log.totals()
    table = Table(box=None, pad_edge=False)
    for column in ("time", "run", "question", "round", "part", "centres", "samples", "sent", "norm", "result"):
        table.add_column(column)
    for entry in log.entries(max(0, last)):
        sent = "" if entry.numbers is None else f"{entry.numbers} numbers"
        table.add_row(
            datetime.fromtimestamp(entry.time).isoformat(" ", "seconds"),
            *(_plain(word) for word in (entry.run[-6:], entry.kind)),
            "" if entry.round is None or entry.round < 0 else str(entry.round),
            *(_plain(word) for word in (entry.part or "", entry.centres or "")),
            "" if entry.samples is None else str(entry.samples),
            sent,
            "" if entry.norm is None else f"{entry.norm:.4g}",
            _plain(entry.code.replace("_", " ") + (f" ({entry.detail})" if entry.detail else "")),
        )
    output_console().print(table)
    answered = totals.codes.pop(ANSWERED, 0)
    print(f"{answered} of at most {policy.questions_in_all} answers, in {totals.runs} runs of the server")
    for code, count in sorted(totals.codes.items()):
        print(f"{count} refused: {code.replace('_', ' ')}")
    if totals.spent:
        epsilon = epsilon_of(math.sqrt(totals.spent), policy.delta)
        limit = "" if policy.epsilon is None else f" of {policy.epsilon:g}"
        print(f"privacy: ε = {epsilon:.4g}{limit} at δ = {policy.delta:g} for all answers with noise")


@site.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="The site's data.")],
    config: Annotated[Path, typer.Option(help="The configuration of the federation, as its server sent it.")],
    folder: Annotated[Path, typer.Option(help="The site's folder, in which its site.toml is.")] = Path(),
) -> None:
    """Read the site's data as the federation would, and show what would be sent. Nothing leaves the site."""
    with needing_flower():
        from coterie._src.federation.site_check import check_site
        from coterie._src.federation.site_policy import SitePolicy, read_policy
    from coterie._src.experiments import read_config

    has_policy = (folder / POLICY).is_file()
    policy = read_policy(folder / POLICY) if has_policy else SitePolicy()
    found = check_site(read_config(config), policy, file)
    print(f"{file}: can be read; {found.samples} samples to learn from, {found.held_out} held out")
    print(f"a model has a weight for {', '.join(_plain(name) for name in found.weights)}")
    print(f"policy: {folder / POLICY if has_policy else 'the default one'}")
    table = Table(box=None, pad_edge=False)
    for column in ("question", "what the answer is", "numbers", "samples behind it", "result"):
        table.add_column(column)
    for one in found.sent:
        table.add_row(one.kind, one.meaning, one.numbers, str(one.samples), one.refusal or "answered")
    output_console().print(table)
    for note in found.notes:
        print(f"note: {_plain(note)}")


def _plain(text: str) -> str:
    """Text from others, without control characters and markup."""
    return printable(text, 1000).replace("[", "\\[")
