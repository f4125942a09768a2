"""How the server of a federation is: whether it answers, which sites are there, and what will soon be in the way."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from coterie._src.federation.certificates import expiry_warnings, fingerprint, read_public_key, valid_until
from coterie._src.federation.folder_lock import holder
from coterie._src.federation.server_folder import (
    STATE_FOLDER,
    blocked_sites,
    key_files,
    node_of,
    read_settings_of,
)
from coterie._src.federation.server_process import control_of


class SiteStatus(NamedTuple):
    """A key of a site."""

    site: str
    key: str  # its file
    fingerprint: str
    state: str


class Status(NamedTuple):
    """A server and its sites."""

    answers: bool
    running: bool  # whether a run is under way
    lines: tuple[str, ...]
    sites: tuple[SiteStatus, ...]
    warnings: tuple[str, ...]


def status_of(server: Path) -> Status:
    """Return how the server of a folder is."""
    settings = read_settings_of(server)
    control = control_of(server, settings)
    answers = control.answers()
    online = {node.number: node.online for node in control.nodes()} if answers else {}
    control.close()
    blocked, sites = blocked_sites(server), []
    for one in key_files(server):
        node = node_of(one.note)
        state = "not registered yet" if node is None else "connected" if online.get(node) else "not connected"
        if one.site in blocked:
            state = f"blocked since {blocked[one.site].since}: {blocked[one.site].reason}"
        sites.append(SiteStatus(one.site, one.path.name, fingerprint(read_public_key(one.path)), state))
    running = holder(server / STATE_FOLDER) is not None
    lines = [
        f"server: {'answers' if answers else 'does not answer'} on 127.0.0.1:{settings.inner_port}",
        f"sites call: {settings.host}:{settings.port}",
        f"run: {'under way' if running else 'none under way'}",
        f"connected: {sum(online.values())} sites",
    ]
    if (until := valid_until(server / "server.pem")) is not None:
        lines.append(f"certificate of the server: valid until {until:%Y-%m-%d}")
    return Status(answers, running, tuple(lines), tuple(sites), tuple(expiry_warnings(server)))


def status_table(status: Status) -> Group:
    """Return the status as a view for the terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("site", "key", "fingerprint", "state"):
        table.add_column(name, no_wrap=name != "state")
    for one in status.sites:
        table.add_row(*map(escape, one))
    return Group(*map(escape, status.lines), *([table] if status.sites else []))
