"""The folder of a federation's server: its settings, the keys of the sites, and who is kept out of runs.

server.toml           settings
nodes/SITE.pub        a key of a site, in OpenSSH's format; further ones are SITE.2.pub, SITE.3.pub, …
nodes/SITE.json       the node of that key, once Flower's server knows it
nodes/revoked/        keys that are withdrawn
blocked.json          sites that take part in no run, and why
federation/           what a run writes
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie._src.experiments.printable import printable
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.toml import toml_value

SETTINGS, NODES, REVOKED, BLOCKED, STATE_FOLDER = "server.toml", "nodes", "revoked", "blocked.json", "federation"
SITE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
KEY_FILE = re.compile(r"^(?P<site>[A-Za-z0-9][A-Za-z0-9_-]{0,62})(?:\.(?P<number>[1-9][0-9]{0,5}))?\.(?:pub|json)$")


class ServerSettings(BaseModel):
    """What `server.toml` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(description="the server's name or address, as the sites see it")
    port: int = Field(ge=1, le=65535, description="the port that sites connect to")
    inner_port: int = Field(ge=1, le=65535, description="the port of Flower's server on loopback")
    secure: bool = Field(True, description="whether connections are encrypted and sites known by their keys")
    memory_mb: int = Field(4096, ge=256, description="the memory that a run may take on the server")


def read_settings_of(server: Path) -> ServerSettings:
    """Return the settings of a server's folder."""
    file = server / SETTINGS
    try:
        return ServerSettings.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ValueError(f"{server}: is not the folder of a federation's server (it has no {SETTINGS})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: is not TOML ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def settings_toml(settings: ServerSettings) -> str:
    """Return the text of `server.toml`."""
    lines = []
    for name, field in ServerSettings.model_fields.items():
        lines += [f"# {field.description}", f"{name} = {toml_value(getattr(settings, name))}"]
    return "\n".join([*lines, ""])


def write_flower_configuration(server: Path, port: int, secure: bool) -> None:
    """Write what the command `flwr` needs to find the server where its folder is now."""
    place = server.resolve()
    trust = f"root-certificates = {toml_value(str(place / 'ca.pem'))}" if secure else "insecure = true"
    text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n{trust}\n'
    write_atomically(place / "flwr" / "config.toml", text.encode())


class KeyFile(NamedTuple):
    """A public key of a site."""

    site: str
    number: int  # 1 for SITE.pub
    path: Path

    @property
    def note(self) -> Path:
        """The file that says which node it is."""
        return self.path.with_suffix(".json")


def key_files(server: Path) -> list[KeyFile]:
    """Return the public keys in a server's folder, by site and from old to new."""
    return _files(server / NODES, "*.pub")


def _files(folder: Path, pattern: str) -> list[KeyFile]:
    found = [(KEY_FILE.match(path.name), path) for path in folder.glob(pattern)]
    return sorted(KeyFile(match["site"], int(match["number"] or 1), path) for match, path in found if match)


def next_key_file(server: Path, site: str) -> Path:
    """The file for a further key of a site; no number is used again."""
    used = [one.number for place in (NODES, f"{NODES}/{REVOKED}") for one in _files(server / place, f"{site}.*")
            if one.site == site]  # fmt: skip
    number = max(used, default=0) + 1
    return server / NODES / (f"{site}.pub" if number == 1 else f"{site}.{number}.pub")


def node_of(note: Path) -> int | None:
    """The node that a note names; None where there is none, or it cannot be read."""
    try:
        return int(json.loads(note.read_text(encoding="utf-8"))["node-id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Block(NamedTuple):
    """Why a site takes part in no run."""

    reason: str
    since: str


def blocked_sites(server: Path) -> dict[str, Block]:
    """Return the sites that are kept out, by name, or by node where they have no name."""
    file = server / BLOCKED
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(site): Block(printable(one["reason"]), printable(one["since"])) for site, one in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: cannot be read as the list of blocked sites ({error})") from None


def write_blocked(server: Path, blocks: Mapping[str, Block]) -> None:
    """Write the sites that are kept out."""
    content: dict[str, Any] = {site: one._asdict() for site, one in sorted(blocks.items())}
    write_atomically(server / BLOCKED, f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode())


def block_site(server: Path, site: str, reason: str) -> None:
    """Keep a site out of all runs from their next question on."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    write_blocked(server, {**blocked_sites(server), site: Block(printable(reason), since)})


def check_participant(server: Path, site: str) -> None:
    """Raise a ValueError where a server knows no such site; one without a name is a node, a number."""
    read_settings_of(server)
    known = {one.site for one in key_files(server)} | {name for name, _ in names_of_nodes(server).values()}
    if site not in known and not site.isdecimal():
        raise ValueError(f"site: {site!r} is not known; known are {', '.join(sorted(known)) or 'none'}")


def allow_site(server: Path, site: str) -> None:
    """Let a site take part again."""
    blocks = blocked_sites(server)
    if site not in blocks:
        raise ValueError(f"{site}: is not blocked" + (f"; blocked are {', '.join(sorted(blocks))}" if blocks else ""))
    write_blocked(server, {name: one for name, one in blocks.items() if name != site})


def server_of(folder: Path) -> Path:
    """Return the folder of the server whose run writes to a folder: the one above it, or that above the run's own."""
    above = folder.resolve().parent
    places = [place for place in (above, above.parent) if (place / NODES).is_dir() or (place / SETTINGS).is_file()]
    return places[0] if places else above


class Participants:
    """Which nodes take part in a run, and their names: read again whenever it is asked.

    Parameters
    ----------
    server
        The server's folder; None: all nodes take part, and have no names.
    """

    def __init__(self, server: Path | None = None) -> None:
        self.server = server
        self.names: dict[int, str] = {}
        self.blocks: dict[int, Block] = {}
        self._read: tuple[object, dict[int, tuple[str, int]], dict[str, Block]] = (None, {}, {})

    def of(self, present: Iterable[int]) -> list[int]:
        """Return the nodes that take part: of a site with several keys that with the newest, and no blocked site."""
        here = sorted(set(present))
        if self.server is None:
            return here
        known, blocks = self._known()
        self.names = {node: site for node, (site, _) in known.items()}
        self.blocks = {node: blocks[name] for node in {*here, *known} if (name := self.name(node)) in blocks}
        newest: dict[str, tuple[int, int]] = {}
        for node in here:
            site, number = known.get(node, (str(node), 1))
            newest[site] = max(newest.get(site, (0, 0)), (number, node))
        return sorted(node for _, node in newest.values() if node not in self.blocks)

    def name(self, node: int) -> str:
        """The name of a node's site; its number where it has none."""
        return self.names.get(node, str(node))

    def _known(self) -> tuple[dict[int, tuple[str, int]], dict[str, Block]]:
        """The site and the number of the key of each node, and the blocked sites; read where the files have changed."""
        assert self.server is not None
        marks = [_mark(self.server / name) for name in (NODES, BLOCKED)]
        if marks != self._read[0]:
            self._read = marks, names_of_nodes(self.server), blocked_sites(self.server)
        return self._read[1], self._read[2]


def names_of_nodes(server: Path) -> dict[int, tuple[str, int]]:
    """Return the site and the number of the key of each node that a note names."""
    found = {}
    for note in sorted((server / NODES).glob("*.json")):
        if (node := node_of(note)) is not None:
            match = KEY_FILE.match(note.name)
            found[node] = (match["site"], int(match["number"] or 1)) if match else (note.stem, 1)
    return found


def _mark(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
