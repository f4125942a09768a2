"""Keys that sites make, and certificates that are renewed: who is let in, and one clear line where somebody is not."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from coterie._src.experiments import read_config
from coterie._src.federation import certificates
from coterie._src.federation.certificates import (
    CertificateAuthority,
    check_server_certificates,
    expiry_warnings,
    fingerprint,
    read_certificate,
    read_public_key,
    valid_until,
)
from coterie._src.federation.deployment import write_deployment
from coterie._src.federation.server_folder import key_files, names_of_nodes
from real_processes import coterie

HOST = "fed.example.org"
SITES = ["oslo", "bern", "rome"]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    config = read_config(None, ["problem.clusters=2", "algorithm.max_byzantine=0"])
    write_deployment(tmp_path / "d", config, SITES, host=HOST, make_keys=False)
    return tmp_path / "d" / "server"


def test_a_site_makes_its_key_and_the_server_adds_the_public_half(server: Path, tmp_path: Path) -> None:
    """The private half never leaves the site; of two keys both are valid until the old one is withdrawn."""
    assert not list(server.parent.rglob("node.key"))
    oslo = server.parent / "oslo"
    made = coterie("site", "init", str(oslo), cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert (oslo / "node.key").stat().st_mode & 0o077 == 0
    told = fingerprint(read_public_key(oslo / "oslo.pub"))
    assert told in made.stdout
    again = coterie("site", "init", str(oslo), cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    added = coterie("federate", "add", "oslo", "--key", str(oslo / "oslo.pub"), "--folder", str(server), cwd=tmp_path)
    assert told in added.stdout
    twice = coterie("federate", "add", "bern", "--key", str(oslo / "oslo.pub"), "--folder", str(server), cwd=tmp_path)
    assert "this key is known already (oslo.pub)" in twice.stderr

    assert coterie("site", "init", str(oslo), "--renew", cwd=tmp_path).returncode == 0
    old = (oslo / "node.key").read_bytes()
    add = ("federate", "add", "oslo", "--key", str(oslo / "oslo.next.pub"), "--folder", str(server))
    assert coterie(*add, cwd=tmp_path).returncode == 0
    assert [(one.site, one.number) for one in key_files(server)] == [("oslo", 1), ("oslo", 2)]
    assert (oslo / "node.key").read_bytes() == old
    assert coterie("site", "init", str(oslo), "--use-next", cwd=tmp_path).returncode == 0
    assert (oslo / "node.key").read_bytes() != old
    revoked = coterie("federate", "revoke", "oslo", "--old", "--folder", str(server), cwd=tmp_path)
    assert revoked.returncode == 0, revoked.stderr
    assert [one.path.name for one in key_files(server)] == ["oslo.2.pub"]
    back = coterie("federate", "add", "oslo", "--key", str(oslo / "oslo.pub"), "--folder", str(server), cwd=tmp_path)
    assert "was withdrawn and does not come back" in back.stderr
    assert coterie("federate", "revoke", "oslo", "--folder", str(server), cwd=tmp_path).returncode == 0
    assert key_files(server) == []
    unknown = coterie("federate", "revoke", "oslo", "--folder", str(server), cwd=tmp_path)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)


def test_keys_that_sites_have_sent_are_part_of_a_new_deployment(tmp_path: Path) -> None:
    assert coterie("site", "init", "oslo", cwd=tmp_path).returncode == 0
    words = ["--site", "oslo", "--site", "rome", "--set", "algorithm.max_byzantine=0", "--set", "problem.clusters=2"]
    done = coterie("federate", "up", "d", *words, "--key", "oslo/oslo.pub", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "d/server/nodes/oslo.pub").read_bytes() == (tmp_path / "oslo/oslo.pub").read_bytes()
    assert not (tmp_path / "d/server/nodes/rome.pub").exists()
    assert not list((tmp_path / "d").rglob("node.key"))
    assert "coterie site init" in done.stdout
    (tmp_path / "lyon.pub").write_bytes((tmp_path / "oslo/oslo.pub").read_bytes())
    wrong = coterie("federate", "up", "e", *words, "--key", "lyon.pub", cwd=tmp_path)
    assert "keys: 'lyon' is none of the sites" in wrong.stderr
    (tmp_path / "rome.pub").write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJQ= me")
    wrong = coterie("federate", "up", "e", *words, "--key", "rome.pub", cwd=tmp_path)
    assert "is not a" in wrong.stderr
    assert wrong.stderr.count("\n") == 1
    assert not (tmp_path / "e").exists()


def test_a_renewed_certificate_is_trusted_beside_the_old_one(server: Path, tmp_path: Path) -> None:
    """Sites keep their ca.pem: server certificates, old and new, are signed by the same key as both of these."""
    old_own, old_authority = (read_certificate(server / name) for name in ("server.pem", "ca.pem"))
    old_key = (server / "server.key").read_bytes()
    done = coterie("federate", "renew", "--authority", "--folder", str(server), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    new_own, new_authority = (read_certificate(server / name) for name in ("server.pem", "ca.pem"))
    assert new_own.serial_number != old_own.serial_number
    assert (server / "server.key").read_bytes() != old_key
    assert (server / "server.key").stat().st_mode & 0o077 == 0
    for own in (old_own, new_own):
        for authority in (old_authority, new_authority):
            own.verify_directly_issued_by(authority)
    assert check_server_certificates(server, HOST) == []
    shutil.move(server.parent / "offline", tmp_path / "stick")
    missing = coterie("federate", "renew", "--folder", str(server), cwd=tmp_path)
    assert "bring the authority's key" in missing.stderr
    key = tmp_path / "stick" / "ca.key"
    assert (
        coterie("federate", "renew", "--authority-key", str(key), "--folder", str(server), cwd=tmp_path).returncode == 0
    )
    stranger = CertificateAuthority().write(tmp_path / "other", HOST)
    assert stranger
    other = str(tmp_path / "other" / "offline" / "ca.key")
    wrong = coterie("federate", "renew", "--authority-key", other, "--folder", str(server), cwd=tmp_path)
    assert "is the key of another authority" in wrong.stderr


def test_certificates_that_no_site_would_trust_are_named_before_the_server_starts(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        done = coterie("federate", "serve", "--folder", str(server), cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        return done.stderr

    authority = CertificateAuthority(_key(server.parent / "offline" / "ca.key"))
    good = {name: (server / name).read_bytes() for name in ("server.pem", "server.key", "ca.pem")}

    def write(days: float, host: str = HOST, by: CertificateAuthority = authority) -> None:
        (server / "server.key").unlink()
        key, certificate = by.server_certificate(host, days)
        certificates.write_secret(server / "server.key", key)
        (server / "server.pem").write_bytes(certificate)

    write(0.001)  # it began five minutes ago
    assert "server.pem: ended on" in told()
    write(29)
    [warning] = check_server_certificates(server, HOST)
    assert "coterie federate renew" in warning
    write(400, "other.example.org")
    assert f"is not for {HOST}" in told()
    write(400, by=CertificateAuthority())
    assert "was not signed by the authority of ca.pem" in told()
    (server / "server.pem").write_bytes(good["server.pem"])
    assert "does not belong to server.key" in told()
    (server / "server.pem").write_text("nonsense")
    assert "is not a certificate in PEM form" in told()
    monkeypatch.setattr(certificates, "BACKDATED_MINUTES", -60)
    write(400)
    assert "is valid only from" in told()
    assert "set the clock" in told()


def _key(file: Path) -> certificates.ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(key, certificates.ec.EllipticCurvePrivateKey)
    return key


def test_the_authority_outlives_server_certificates(server: Path) -> None:
    own, authority = valid_until(server / "server.pem"), valid_until(server / "ca.pem")
    assert own is not None
    assert authority is not None
    assert authority - own > timedelta(days=2000)
    assert own - datetime.now(UTC) > timedelta(days=800)
    assert expiry_warnings(server) == []
    names = read_certificate(server / "server.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert HOST in names.value.get_values_for_type(x509.DNSName)


def test_whose_node_is_whose_with_several_keys(server: Path) -> None:
    for name, node in (("oslo", 1), ("oslo.2", 2), ("rome", 3)):
        (server / "nodes" / f"{name}.json").write_text(f'{{"node-id": {node}}}')
    (server / "nodes" / "bern.json").write_text("nonsense")
    assert names_of_nodes(server) == {1: ("oslo", 1), 2: ("oslo", 2), 3: ("rome", 1)}
