"""The keys by which a federation's server knows its sites: made at the site, added and withdrawn at the server."""

from __future__ import annotations

import os
from pathlib import Path

from coterie._src.experiments.run_folder import write_atomically
from coterie._src.federation.certificates import fingerprint, node_key, read_public_key, write_secret
from coterie._src.federation.server_folder import (
    NODES,
    REVOKED,
    SITE_NAME,
    key_files,
    next_key_file,
    read_settings_of,
)

PRIVATE, NEXT = "node.key", "node.next.key"
"""The key of a site, and the one that will follow it."""


def make_key(folder: Path, site: str, renew: bool = False) -> tuple[Path, str]:
    """Make the key of a site in its folder; return the file to send to the server, and its fingerprint.

    renew: make a further key, which takes the place of the first with `use_next_key`, when the server knows it.
    """
    if not SITE_NAME.match(site):
        raise ValueError(f"name: {site!r} must be letters, digits, - and _ only")
    private, public = folder / (NEXT if renew else PRIVATE), folder / f"{site}{'.next' if renew else ''}.pub"
    if renew and not (folder / PRIVATE).exists():
        raise ValueError(f"{folder / PRIVATE}: there is no key yet; leave out --renew")
    if private.exists():
        more = "--renew makes a further one" if not renew else "--use-next puts it in the place of the first"
        raise ValueError(f"{private}: exists already; {more}")
    key, told = node_key()
    write_secret(private, key)
    write_atomically(public, told)
    return public, fingerprint(read_public_key(public))


def use_next_key(folder: Path) -> None:
    """Put the further key of a site in the place of the first."""
    if not (folder / NEXT).exists():
        raise ValueError(f"{folder / NEXT}: there is no further key; --renew makes one")
    os.replace(folder / NEXT, folder / PRIVATE)


def add_key(server: Path, site: str, file: Path) -> tuple[Path, str]:
    """Add a public key of a site to a server's folder; return its place there and its fingerprint."""
    if not read_settings_of(server).secure:
        raise ValueError(f"{server}: this federation has no keys (--insecure)")
    if not SITE_NAME.match(site):
        raise ValueError(f"site: {site!r} must be letters, digits, - and _ only")
    key = read_public_key(file)
    for place in (server / NODES, server / NODES / REVOKED):
        for known in sorted(place.glob("*.pub")):
            if read_public_key(known) == key:
                what = "was withdrawn and does not come back" if place.name == REVOKED else "is known already"
                raise ValueError(f"{file}: this key {what} ({known.name})")
    path = next_key_file(server, site)
    write_atomically(path, file.read_bytes())
    return path, fingerprint(key)


def revoke_keys(server: Path, site: str, old: bool = False) -> list[Path]:
    """Withdraw the keys of a site, or those before the newest; return their new places."""
    known = key_files(server)
    own = [one for one in known if one.site == site]
    if not own:
        names = ", ".join(sorted({one.site for one in known})) or "none"
        raise ValueError(f"site: {site!r} has no key; sites with keys are {names}")
    if old and len(own) == 1:
        raise ValueError(f"site: {site!r} has one key only; --old would leave it as it is")
    places = []
    for one in own[:-1] if old else own:
        place = server / NODES / REVOKED / one.path.name
        place.parent.mkdir(exist_ok=True)
        os.replace(one.path, place)
        places.append(place)
    return places
