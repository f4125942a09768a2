"""Everything that a federation needs on paper: an app, certificates, keys, and the commands for server and sites."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shlex
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie._src.experiments.config import ROBUST_STARTS, Config, Folder
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.toml import as_toml

DAYS = 825
"""How long certificates are good for."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
ENVIRONMENT = "export FLWR_TELEMETRY_ENABLED=0 RAY_USAGE_STATS_ENABLED=0"


def prepare(
    folder: str | Path,
    config: Config,
    sites: Sequence[str],
    *,
    host: str,
    port: int = 9093,
    method: str = "coterie",
    features: int = 0,
    deadline: float = 60.0,
    insecure: bool = False,
) -> Path:
    """Write a folder with `app/`, `server/` and one folder for each site, and a README.md that says who does what.

    Every site gets its own folder and no other. host: as the sites see the server. They call its `port`, where nginx
    listens and lets through what a site needs; the server itself listens on loopback, one port higher. With a `host` on
    loopback there is no proxy. insecure: no certificates and no keys, for a trial.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place}: exists already and is not an empty folder; choose another")
    if not sites or len(set(sites)) != len(sites):
        raise ValueError("sites: name at least one, each once")
    for name in sites:
        if not NAME.match(name):
            raise ValueError(f"sites: {name!r} must be letters, digits, - and _ only")
    if not 0 < port < 65536:
        raise ValueError(f"port: must be from 1 to 65535, got {port}")
    init = config.algorithm.init
    if init not in (*ROBUST_STARTS, "bernoulli", "gaussian") and not Path(init).is_file():
        raise ValueError(
            f"algorithm.init: a server cannot begin with {init!r}; use spectral, balls, erm, bernoulli, "
            "gaussian or a file of centres"
        )
    _write_app(place / "app", config, len(sites), method, features, deadline)
    authority = None if insecure else Authority(host)
    server, inside = place / "server", port if host in LOOPBACK else port + 1
    write_atomically(server / "flwr" / "config.toml", _connection(server, inside, insecure).encode())
    if authority is not None:
        authority.write(place)
    _script(server / "start.sh", _start_server(inside, insecure))
    _script(server / "run.sh", _run())
    if host not in LOOPBACK:
        write_atomically(server / "nginx.conf", _proxy(host, port, inside, insecure).encode())
    samples = _samples(config)
    for i, name in enumerate(sites):
        site = place / name
        _script(site / "start.sh", _start_site(host, port, f"partition-id={i}", insecure, samples))
        if authority is not None:
            write_atomically(site / "ca.pem", authority.certificate_pem)
            private, public = node_key()
            _secret(site / "node.key", private)
            write_atomically(server / "nodes" / f"{name}.pub", public)
    write_atomically(place / "README.md", _readme(sites, host, port, insecure, samples).encode())
    return place / "README.md"


def free_port() -> int:
    """A port of loopback that nobody uses at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Authority:
    """A certificate authority that signs one server certificate, for `host` and loopback."""

    def __init__(self, host: str) -> None:
        self.key = ec.generate_private_key(ec.SECP384R1())
        self.server_key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie federation")])
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
        end = now + datetime.timedelta(days=DAYS)

        def draft(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
            made = x509.CertificateBuilder().subject_name(name).issuer_name(subject).public_key(key.public_key())
            return made.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(end)

        root = (
            draft(subject, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self.key, hashes.SHA384())
        )
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
        server = (
            draft(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]), self.server_key)
            .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .sign(self.key, hashes.SHA384())
        )
        self.certificate_pem = root.public_bytes(serialization.Encoding.PEM)
        self.server_pem = server.public_bytes(serialization.Encoding.PEM)

    def write(self, place: Path) -> None:
        """The authority's own key stands apart: it is needed only to sign again, and belongs off line."""
        server = place / "server"
        write_atomically(server / "ca.pem", self.certificate_pem)
        write_atomically(server / "server.pem", self.server_pem)
        _secret(server / "server.key", _pem(self.server_key))
        _secret(place / "offline" / "ca.key", _pem(self.key))


def _usage(signs_certificates: bool) -> x509.KeyUsage:
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


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def node_key() -> tuple[bytes, bytes]:
    """A private and a public key in OpenSSH's format, on the NIST curve P-384; Flower takes no other kind."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public


def _secret(path: Path, content: bytes) -> None:
    """A file for its owner alone, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)


def _script(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _write_app(place: Path, config: Config, sites: int, method: str, features: int, deadline: float) -> None:
    package = place / "federation_app"
    write_atomically(
        place / "pyproject.toml",
        PROJECT.format(method=method, sites=sites, deadline=float(deadline), features=features).encode(),
    )
    write_atomically(package / "__init__.py", b'"""The app that the server and all sites of a federation run."""\n')
    write_atomically(package / "apps.py", APPS.encode())
    write_atomically(package / "config.toml", as_toml(config).encode())


PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation-app"
version = "0.1.0"
description = "A Byzantine-robust clustered federation"
license = "Apache-2.0"
# coterie[flower] must be there already, on the server and at every site: nothing is installed by a run
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "federation_app.apps:server"
clientapp = "federation_app.apps:client"

# Each may be set for one run: --run-config "deadline=10.0 least=6"
[tool.flwr.app.config]
method = "{method}"
places = {sites}
least = {sites}
patience = 600.0
deadline = {deadline}
features = {features}
folder = "federation"
"""
APPS = '''"""Server and client, from config.toml beside this file."""

from pathlib import Path

from coterie._src.federation import apps

both = apps(Path(__file__).with_name("config.toml"))
server = both[0]  # Flower looks for plain names
client = both[1]
'''


def _connection(server: Path, port: int, insecure: bool) -> str:
    trust = "insecure = true" if insecure else f'root-certificates = "{(server / "ca.pem").resolve()}"'
    return f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n{trust}\n'


def _start_server(port: int, insecure: bool) -> str:
    safe = (
        "--insecure"
        if insecure
        else "--ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key --enable-supernode-auth"
    )
    return f"""#!/bin/sh
# The server of the federation. It listens on loopback: sites come through the proxy of nginx.conf, and through it reach
# only what a site needs. What is known of the sites survives a restart in superlink.sqlite.
cd "$(dirname "$0")" || exit 1
{ENVIRONMENT} FLWR_HOME="$PWD/flwr"
rm -f ready
flower-superlink --host "${{LISTEN:-127.0.0.1}}" --port {port} {safe} \\
    --database superlink.sqlite --disable-runtime-dependency-installation &
server=$!
trap 'kill $server' INT TERM
until flwr supernode list here >/dev/null 2>&1; do
    kill -0 $server 2>/dev/null || exit 1
    sleep 1
done
for key in nodes/*.pub; do # a site that knocks before its key is known gives up
    [ -e "$key" ] || continue
    note="${{key%.pub}}.json" # whose node is whose, for the audit
    flwr supernode register "$key" here --format json >"$note.new" 2>/dev/null
    if grep -q node-id "$note.new"; then mv "$note.new" "$note"; else rm -f "$note.new"; fi # who is known stays so
done
: >ready
echo "Ready for the sites."
wait $server
"""


def _run() -> str:
    return f"""#!/bin/sh
# One federation, to its end; started again it goes on after the last finished round. Other settings: ./run.sh "least=4"
cd "$(dirname "$0")" || exit 1
{ENVIRONMENT} FLWR_HOME="$PWD/flwr"
exec flwr run ../app here --stream --run-config "folder='$PWD/federation' $*"
"""


def _samples(config: Config) -> str:
    """What a site brings; nothing to a rehearsal."""
    problem = config.problem
    if not isinstance(problem, Folder):
        return ""
    target = [] if problem.task == "mean" else [problem.target]
    names = f"the columns {', '.join([*problem.columns, *target])}" if problem.columns else "this site's samples"
    return f".csv, .parquet or .npz with {names}"


def _start_site(host: str, port: int, rehearsal: str, insecure: bool, samples: str) -> str:
    """samples: the file that the site needs; without one it plays a part of the rehearsal."""
    safe = "--insecure" if insecure else "--root-certificates ca.pem --auth-supernode-private-key node.key"
    check = find = ""
    settings = rehearsal
    if samples:
        check = f'[ -n "$1" ] || {{ echo "usage: $0 FILE:" {shlex.quote(samples)} >&2; exit 2; }}\n'
        find = '[ -r "$1" ] || { echo "$1: cannot be read" >&2; exit 2; }\nfile="$(realpath "$1")"\n'
        settings = 'data=\\"$file\\"'
    return f"""#!/bin/sh
# This site's part of the federation. It only ever calls out, to {host}:{port}. It comes back by itself when it dies;
# the server may count on the one before for another minute, and refuses the new one until then.
{check}{find}cd "$(dirname "$0")" || exit 1
{ENVIRONMENT} FLWR_HOME="$PWD/flwr"
trap 'kill "$node" 2>/dev/null; wait "$node"; exit 130' INT TERM
while :; do
    flower-supernode --superlink {host}:{port} {safe} \\
        --port "${{RUNTIME_PORT:-9094}}" --node-config "{settings}" &
    node=$!
    wait "$node" && exit 0
    echo "The site's process ended or was refused; again in 5 s (Ctrl-C to stop)." >&2
    sleep 5 &
    wait $!
done
"""


def _proxy(host: str, port: int, inside: int, insecure: bool) -> str:
    tls = "" if insecure else "\n        ssl_certificate server.pem;\n        ssl_certificate_key server.key;"
    onward = f"http://127.0.0.1:{inside};"
    if not insecure:
        onward = f"""https://127.0.0.1:{inside};
            proxy_ssl_trusted_certificate ca.pem;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;"""
    return f"""# nginx -p "$PWD" -c nginx.conf    in this folder, or as a part of a configuration of your own.
# Only what a site needs is let through: Flower's control API (who may join, what is run) answers on the same port as
# the sites' API and asks nobody who he is. So nginx listens to the world, and the server to loopback alone.
pid nginx.pid;
error_log nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path nginx-bodies;
    proxy_temp_path nginx-answers;
    client_max_body_size 0;
    server {{
        listen {port}{"" if insecure else " ssl"};
        server_name {host};{tls}
        location /v1/fleet/ {{
            proxy_pass {onward}
        }}
        location / {{
            return 403;
        }}
    }}
}}
"""


def _readme(sites: Sequence[str], host: str, port: int, insecure: bool, samples: str) -> str:
    warning = (
        "**Without certificates and keys: anybody can read along, join and run what he likes. For a trial only.**\n\n"
        if insecure
        else ""
    )
    lines = "\n".join(
        f"- `{name}/`: to the site {name}, by a way that you trust; nobody else gets it." for name in sites
    )
    proxy = ""
    if host not in LOOPBACK:
        proxy = (
            f" It listens on loopback.\n   nginx, with `server/nginx.conf`, listens on port {port}: it lets sites "
            "through, and nobody to Flower's\n   control API. Open no other port."
        )
    start = f"`./start.sh FILE` ({samples})" if samples else "`./start.sh`"
    keep = "" if insecure else "- `offline/`: the authority's key. Needed only to sign again; keep it off line.\n"
    return f"""# A federation of {len(sites)} sites

{warning}- `server/` and `app/`: stay on the server ({host}).
{lines}
{keep}
1. On all machines: Python 3.11 or later and `pip install 'coterie[flower]'`.
2. On the server: `server/start.sh`, until it says "Ready for the sites".{proxy}
3. At every site: {start}. It calls {host}:{port} and stays.
4. On the server: `server/run.sh`. It waits for the sites, runs to the end, and leaves `server/federation/`: the models
   (`centres.safetensors`), the state after the last round, and the audit; `coterie audit server/federation` reads it.
   `coterie federate watch server/federation`, in another terminal, shows how it goes.

After a crash start what has stopped again, in the same order; the run goes on after the last finished round. To begin
anew move `server/federation/` away. A site also listens, to itself alone, on port 9094; where that is taken, as by
another site on the same machine: `RUNTIME_PORT=9095 ./start.sh …`.
"""
