"""Certificates and keys of a federation: an authority of its own, the server's certificate, a key for every site."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie._src.experiments.run_folder import write_atomically

VALID_DAYS = 825
"""How long the server's certificate is valid."""
AUTHORITY_DAYS = 3650
"""How long the authority's certificate is valid, which all sites have."""
WARN_DAYS = 30
"""So long before their end certificates are warned of."""
MAX_KEY_BYTES = 4096
BACKDATED_MINUTES = 5
"""How long before its making a certificate is valid, for machines whose clocks differ."""


class CertificateAuthority:
    """A certificate authority that signs server certificates.

    Parameters
    ----------
    key
        Its private key; None: a new one. Certificates of the same key are valid side by side.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        self.key = _new_key() if key is None else key
        self.subject = _common_name("Coterie federation")

    def own_certificate(self, days: float = AUTHORITY_DAYS) -> bytes:
        """Return its own certificate in PEM form."""
        return self._signed(
            self.subject,
            self.key,
            days,
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), False),
            (_key_usage(signs_certificates=True), True),
        )

    def server_certificate(self, host: str, days: float = VALID_DAYS) -> tuple[bytes, bytes]:
        """Return a new private key of a server and its certificate, for `host` and for loopback."""
        key = _new_key()
        certificate = self._signed(
            _common_name(host[:64]),
            key,
            days,
            (x509.SubjectAlternativeName(_alternative_names(host)), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False),
            (_key_usage(signs_certificates=False), True),
        )
        return _private_pem(key, serialization.PrivateFormat.PKCS8), certificate

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        days: float,
        *extensions: tuple[x509.ExtensionType, bool],
    ) -> bytes:
        """A certificate in PEM form; extensions: each with whether it is critical."""
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=BACKDATED_MINUTES)
        builder = x509.CertificateBuilder(
            self.subject,
            name,
            key.public_key(),
            x509.random_serial_number(),
            begin,
            begin + datetime.timedelta(days=days),
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)

    def write(self, folder: Path, host: str) -> bytes:
        """Write certificates and the server's key to `server/`, its own key to `offline/`; return its certificate.

        Its own key is needed only to sign another certificate and should be kept off line.
        """
        own, server = self.own_certificate(), folder / "server"
        key, certificate = self.server_certificate(host)
        write_atomically(server / "ca.pem", own)
        write_atomically(server / "server.pem", certificate)
        write_secret(server / "server.key", key)
        write_secret(folder / "offline" / "ca.key", _private_pem(self.key, serialization.PrivateFormat.PKCS8))
        return own


def renew_certificates(server: Path, host: str, authority_key: Path, authority: bool = False) -> None:
    """Write a new certificate of the server, signed by the authority that the sites know.

    authority: write a longer certificate of the authority as well. It has the same key, so sites that still have the
    old one trust the server until that ends.
    """
    try:
        key = serialization.load_pem_private_key(authority_key.read_bytes(), None)
    except FileNotFoundError:
        raise ValueError(
            f"{authority_key}: there is no such file; bring the authority's key (--authority-key)"
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{authority_key}: is not the key of an authority ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{authority_key}: is not the key of an authority that federate up has made")
    known = read_certificate(server / "ca.pem")
    if known.public_key() != key.public_key():
        raise ValueError(f"{authority_key}: is the key of another authority than {server / 'ca.pem'}")
    made = CertificateAuthority(key)
    private, certificate = made.server_certificate(host)
    if authority:
        write_atomically(server / "ca.pem", made.own_certificate())
    # the key first: between the two a server that starts says that they do not belong together, and is started again
    replace_secret(server / "server.key", private)
    write_atomically(server / "server.pem", certificate)


def check_server_certificates(server: Path, host: str) -> list[str]:
    """Raise a ValueError where no site could connect with the certificates of a server; return warnings.

    host: the server's name or address, as the sites use it.
    """
    own, authority = read_certificate(server / "server.pem"), read_certificate(server / "ca.pem")
    try:
        key = serialization.load_pem_private_key((server / "server.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{server / 'server.key'}: cannot be read as a private key ({type(error).__name__})") from None
    if key.public_key() != own.public_key():
        raise ValueError(f"{server / 'server.pem'}: does not belong to server.key; renew it (coterie federate renew)")
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise ValueError(f"{server / 'server.pem'}: was not signed by the authority of ca.pem, so no site trusts it; "
                         "renew it (coterie federate renew)") from None  # fmt: skip
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if not set(_alternative_names(host)) <= set(names):
        raise ValueError(f"{server / 'server.pem'}: is not for {host}; renew it (coterie federate renew)")
    now = datetime.datetime.now(datetime.UTC)
    for name, found in (("server.pem", own), ("ca.pem", authority)):
        if now < found.not_valid_before_utc:
            raise ValueError(
                f"{server / name}: is valid only from {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, and this "
                f"machine's clock says {now:%Y-%m-%d %H:%M}; set the clock"
            )
        if now > found.not_valid_after_utc:
            raise ValueError(f"{server / name}: ended on {found.not_valid_after_utc:%Y-%m-%d}; renew it "
                             f"(coterie federate renew{' --authority' if name == 'ca.pem' else ''})")  # fmt: skip
    return expiry_warnings(server)


def expiry_warnings(server: Path) -> list[str]:
    """What to know about the certificates of a server that end soon, or have ended."""
    now, lines = datetime.datetime.now(datetime.UTC), []
    for name, more in (("server.pem", ""), ("ca.pem", " --authority")):
        until = valid_until(server / name)
        if until is None or until - now > datetime.timedelta(days=WARN_DAYS):
            continue
        when = "ended" if until < now else "ends"
        lines.append(f"the certificate {name} {when} on {until:%Y-%m-%d}, and then no site connects: "
                     f"coterie federate renew{more}")  # fmt: skip
    return lines


def valid_until(file: Path) -> datetime.datetime | None:
    """The end of the validity of a certificate in PEM form; None where the file is missing or none."""
    try:
        return read_certificate(file).not_valid_after_utc
    except ValueError:
        return None


def read_certificate(file: Path) -> x509.Certificate:
    """Return the certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise ValueError(f"{file}: is not a certificate in PEM form") from None


def read_public_key(file: Path) -> ec.EllipticCurvePublicKey:
    """Return the public key in a file in OpenSSH's format; only the curve P-384 is taken."""
    try:
        with file.open("rb") as stream:
            key = serialization.load_ssh_public_key(stream.read(MAX_KEY_BYTES))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{file}: is not a public key in OpenSSH's format; `coterie site init` makes one") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{file}: is not a key on the curve P-384; `coterie site init` makes one")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return what two people compare by telephone, as OpenSSH writes it: `SHA256:` and 43 characters."""
    text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(text.split()[1])).digest()).decode().rstrip("=")


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


def replace_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, in the place of another."""
    partial = path.with_name(f".{path.name}.new")
    partial.unlink(missing_ok=True)
    write_secret(partial, content)
    os.replace(partial, path)


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
