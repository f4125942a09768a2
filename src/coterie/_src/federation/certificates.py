"""Certificates and keys of a federation: an authority of its own, the server's certificate, a key for every site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie._src.experiments.run_folder import write_atomically

VALID_DAYS = 825
"""How long a certificate is valid."""
BACKDATED_MINUTES = 5
"""How long before its making a certificate is valid, for machines whose clocks differ."""


class CertificateAuthority:
    """A certificate authority that signs one server certificate, for `host` and for loopback.

    Parameters
    ----------
    host
        The server's name or address, as the sites use it.
    """

    def __init__(self, host: str) -> None:
        self.key, self.server_key = _new_key(), _new_key()
        self.subject = _common_name("Coterie federation")
        self.certificate_pem = self._signed(
            self.subject,
            self.key,
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), False),
            (_key_usage(signs_certificates=True), True),
        )
        self.server_pem = self._signed(
            _common_name(host[:64]),
            self.server_key,
            (x509.SubjectAlternativeName(_alternative_names(host)), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False),
            (_key_usage(signs_certificates=False), True),
        )

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> bytes:
        """A certificate in PEM form; extensions: each with whether it is critical."""
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=BACKDATED_MINUTES)
        builder = x509.CertificateBuilder(
            self.subject,
            name,
            key.public_key(),
            x509.random_serial_number(),
            begin,
            begin + datetime.timedelta(days=VALID_DAYS),
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)

    def write(self, folder: Path) -> None:
        """Write the certificates and the server's key to `server/`, and the authority's own key to `offline/`.

        The authority's key is needed only to sign another certificate and should be kept off line.
        """
        server = folder / "server"
        write_atomically(server / "ca.pem", self.certificate_pem)
        write_atomically(server / "server.pem", self.server_pem)
        write_secret(server / "server.key", _private_pem(self.server_key, serialization.PrivateFormat.PKCS8))
        write_secret(folder / "offline" / "ca.key", _private_pem(self.key, serialization.PrivateFormat.PKCS8))


def valid_until(file: Path) -> datetime.datetime | None:
    """The end of the validity of a certificate in PEM form; None where the file is missing or none."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


def node_key() -> tuple[bytes, bytes]:
    """Return a new private and public key in OpenSSH format on the curve P-384, the only kind that Flower accepts."""
    key = _new_key()
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return _private_pem(key, serialization.PrivateFormat.OpenSSH), public


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may ever read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative_names(host: str) -> list[x509.GeneralName]:
    """`host` and loopback, each once."""
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    return list(dict.fromkeys(names))


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
