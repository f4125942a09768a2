"""`coterie federate add`, `revoke`, `renew`, `block`, `allow`: who may connect to a federation, and who takes part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.federate import federate, needing_flower
from coterie._src.cli.federate_server import HERE, ServerFolder

SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The name of the site.")]


@federate.command()
def add(
    site: SiteName,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The public key that the site has sent.")],
    folder: ServerFolder = HERE,
) -> None:
    """Let a site connect with a key that it has made. A further key is valid beside the ones before.

    Prints the fingerprint of the key: compare it by telephone with what `coterie site init` has printed at the site. A
    server that is running takes the key up within a second. Of a site that connects with two keys the newer one takes
    part in runs.
    """
    with needing_flower():
        from coterie._src.federation.site_keys import add_key
    path, found = add_key(folder, site, key)
    print(f"{path}: {found}")


@federate.command()
def revoke(
    site: SiteName,
    old: Annotated[bool, typer.Option("--old", help="Only the keys before the newest one.")] = False,
    folder: ServerFolder = HERE,
) -> None:
    """Withdraw the keys of a site: it is refused from now on. A key that is withdrawn does not come back."""
    with needing_flower():
        from coterie._src.federation.site_keys import revoke_keys
    for path in revoke_keys(folder, site, old):
        print(path)


@federate.command()
def block(
    site: SiteName,
    reason: Annotated[str, typer.Option(help="Why, for the audit.")] = "no reason given",
    folder: ServerFolder = HERE,
) -> None:
    """Keep a site out of runs, from the next question of a run that is under way on; it stays connected.

    The audit says so, with the reason. A site that has no name is called by its node, as the audit shows it.
    """
    with needing_flower():
        from coterie._src.federation.server_folder import block_site, check_participant
    check_participant(folder, site)
    block_site(folder, site, reason)
    print(f"{site} takes part in no run until `coterie federate allow {site}`.")


@federate.command()
def allow(site: SiteName, folder: ServerFolder = HERE) -> None:
    """Let a site that was blocked take part again."""
    with needing_flower():
        from coterie._src.federation.server_folder import allow_site
    allow_site(folder, site)
    print(f"{site} takes part again.")


@federate.command()
def renew(
    authority_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority's key. Default: ../offline/ca.key of the folder.")
    ] = None,
    authority: Annotated[
        bool, typer.Option("--authority", help="Renew the authority's certificate as well; send ca.pem to the sites.")
    ] = False,
    folder: ServerFolder = HERE,
) -> None:
    """Write a new certificate of the server, which the sites trust as they trust the old one; then restart the server.

    The authority keeps its key: sites that still have its old certificate connect until that ends. A site renews its
    own key with `coterie site init --renew`, and you add it (`coterie federate add`) beside the old one.
    """
    with needing_flower():
        from coterie._src.federation.certificates import renew_certificates, valid_until
        from coterie._src.federation.server_folder import read_settings_of
    file = folder.resolve().parent / "offline" / "ca.key" if authority_key is None else authority_key
    renew_certificates(folder, read_settings_of(folder).host, file, authority)
    for name in ("server.pem", *(("ca.pem",) if authority else ())):
        print(f"{folder / name}: valid until {valid_until(folder / name):%Y-%m-%d}")
    print("Restart the server and nginx; the run that is under way goes on after its last finished round.")
