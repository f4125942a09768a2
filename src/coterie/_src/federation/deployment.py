"""A deployment: the folder with the app, certificates, keys and start scripts for the server and the sites.

The files are filled from `templates/`, whose syntax `fill` explains.
"""

from __future__ import annotations

import re
import shlex
import socket
import stat
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from coterie import __version__
from coterie._src.experiments.config import Config
from coterie._src.experiments.problems import Folder
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.starts import STARTS
from coterie._src.experiments.toml import as_toml
from coterie._src.federation.certificates import CertificateAuthority, node_key, read_public_key, write_secret
from coterie._src.federation.protection import protection
from coterie._src.federation.server_folder import NODES, SETTINGS, SITE_NAME, ServerSettings, settings_toml
from coterie._src.federation.site_policy import policy_as_toml
from coterie._src.init.conditioning import MAX_NUMBERS

CONNECTIONS_PER_SITE, REQUESTS_PER_SITE, BURST_PER_SITE = 4, 10, 100
"""What nginx lets through from one address, for each site, as all sites may be behind one: connections at a time,
requests a second, and requests at once. A site asks for messages every few seconds, and replies in ten requests."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
APP_FILES = ("app/pyproject.toml", "app/federation_app/__init__.py", "app/federation_app/apps.py")
PROXY_FILES = (
    "server/nginx.conf",
    "server/compose.yaml",
    "server/Dockerfile.nginx",
    "server/units.sh",
    *(f"server/systemd/{name}.service" for name in ("server", "proxy", "run")),
)
"""For a server that others than this machine reach."""
SITE_FILES = ("compose.yaml", "units.sh", "systemd/site.service")
"""For a site with data of its own, in its folder."""
SERVER_FILES = ("server/start.sh", "server/run.sh", "server/stop.sh")
RESERVED = ("server", "app", "offline")
"""Names of the folders of a deployment, which no site has."""
LINK_MB = 2048
"""The memory of Flower's server beside a run."""
BASE_MB, COPIES = 2048, 16
"""The memory that a run may take: this, and so many copies, in float64, of an answer of every site."""


def write_deployment(
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
    keys: Mapping[str, Path] | None = None,
    make_keys: bool = True,
) -> Path:
    """Write a folder with `app/`, `server/`, one folder for each site, and a README.md that says who starts what.

    Parameters
    ----------
    folder
        The folder to write; it is new or empty.
    config
        The configuration, as `coterie config` prints it.
    sites
        The names of the sites. Every site is given its own folder and no other.
    host, port
        The address that the sites connect to. nginx listens on `port` and lets through only what a site needs; the
        server itself listens on loopback, one port higher. With a `host` on loopback there is no proxy.
    method
        The method that the server runs.
    features
        The number of feature columns in the sites' files, where `problem.columns` does not name them.
    deadline
        Seconds that a site has for an answer.
    insecure
        Write no certificates and no keys, for a trial.
    keys
        The public keys of sites that have made theirs, by site. The others' are added later (`coterie federate add`).
    make_keys
        Make a key for every site that has sent none, and lay it into the site's folder. Then whoever writes the
        deployment could pass for the site.

    Returns
    -------
    Path
        The README.md of the deployment.
    """
    place = Path(folder)
    keys = keys or {}
    _check(place, config, sites, port)
    for name, file in keys.items():
        if name not in sites:
            raise ValueError(f"keys: {name!r} is none of the sites ({', '.join(sites)})")
        read_public_key(file)
    samples, memory_mb = _describe_samples(config), _memory_mb(config, len(sites), features)
    proxy = () if host in LOOPBACK else PROXY_FILES
    site_lines = [f"- `{name}/`: to the site {name}, by a way that you trust; nobody else gets it." for name in sites]
    values = {
        "method": method,
        "features": str(features),
        "deadline": str(float(deadline)),
        "site_count": str(len(sites)),
        "site_lines": "\n".join(site_lines),
        "host": host,
        "port": str(port),
        "inner_port": str(port + 1 if proxy else port),
        "connections": str(CONNECTIONS_PER_SITE * len(sites)),
        "requests_per_second": str(REQUESTS_PER_SITE * len(sites)),
        "burst": str(BURST_PER_SITE * len(sites)),
        "samples": samples,
        "protection": "\n".join(
            f"- {line}" for line in protection(config, len(sites), method).lines(config.algorithm.trim)
        ),
        "quoted_samples": shlex.quote(samples),
        "version": __version__,
        "service_mb": str(memory_mb + LINK_MB),
    }
    flags = (
        "insecure" if insecure else "secure",
        "proxy" if proxy else "direct",
        "own_data" if samples else "rehearsal",
        *(() if insecure or make_keys else ("own_keys",)),
    )
    for name in ("README.md", *APP_FILES, *SERVER_FILES, *proxy):
        _write(place / name, fill(name, values, flags))
    _write(place / "server" / SETTINGS, settings_toml(ServerSettings(
        host=host, port=port, inner_port=int(values["inner_port"]), secure=not insecure,
        memory_mb=memory_mb,
    )))  # fmt: skip
    if proxy:
        _write(place / "server" / "Dockerfile", fill("Dockerfile", values, flags))
    _write(place / "app" / "federation_app" / "config.toml", as_toml(config))
    for client, name in enumerate(sites):
        _write(place / name / "start.sh", fill("site/start.sh", {**values, "client": str(client)}, flags))
        if samples:
            named = {**values, "site": name, "site_lower": name.lower()}
            for one in SITE_FILES:
                _write(place / name / one, fill(f"site/{one}", named, flags))
            _write(place / name / "Dockerfile", fill("Dockerfile", named, flags))
            _write(place / name / "site.toml", policy_as_toml(config.algorithm.rounds))
            _write(place / name / "config.toml", as_toml(config))  # for `coterie site check`; the app has its own
    if not insecure:
        authority = CertificateAuthority().write(place, host)
        for name in sites:
            write_atomically(place / name / "ca.pem", authority)
            if name in keys:
                write_atomically(place / "server" / NODES / f"{name}.pub", keys[name].read_bytes())
            elif make_keys:
                private, public = node_key()
                write_secret(place / name / "node.key", private)
                write_atomically(place / "server" / NODES / f"{name}.pub", public)
        (place / "server" / NODES).mkdir(exist_ok=True)
    return place / "README.md"


def fill(name: str, values: Mapping[str, str], flags: Collection[str]) -> str:
    """Return the text of a template.

    A template is a file of `templates/`. `@{port}` stands for the value of that name, and a line that begins with
    `@[secure]` is kept, without this mark, only if `secure` is among the flags.

    >>> print(fill("server/stop.sh", {}, ()).splitlines()[-1])
    exec coterie federate stop "$@"
    """
    text = (files("coterie._src.federation") / "templates" / f"{name}.template").read_text(encoding="utf-8")
    lines = [re.match(r"(?:@\[(\w+)\])?(.*)", line, re.DOTALL) for line in text.splitlines(keepends=True)]
    kept = [line[2] for line in lines if line is not None and (line[1] is None or line[1] in flags)]
    return _AtTemplate("".join(kept)).substitute(values)


class _AtTemplate(Template):
    """With `@` for the names of values: `$` belongs to the shell."""

    delimiter = "@"


def free_port() -> int:
    """Return a port of loopback that is not in use at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _check(place: Path, config: Config, sites: Sequence[str], port: int) -> None:
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place}: exists already and is not an empty folder; choose another")
    if not sites or len(set(sites)) != len(sites):
        raise ValueError("sites: name at least one, each once")
    for name in sites:
        if not SITE_NAME.match(name) or name in RESERVED:
            raise ValueError(
                f"sites: {name!r} must be letters, digits, - and _ only, and none of {', '.join(RESERVED)}"
            )
    if not 0 < port < 65536:
        raise ValueError(f"port: must be from 1 to 65535, got {port}")
    init = config.algorithm.init
    if not (init in STARTS and STARTS[init].for_servers) and not Path(init).is_file():
        raise ValueError(
            f"algorithm.init: a server cannot begin with {init!r}; use spectral, balls, erm, bernoulli, "
            "gaussian or a file of centres"
        )


def _describe_samples(config: Config) -> str:
    """What the file of a site must hold; empty for a rehearsal, where the sites' data are synthetic."""
    problem = config.problem
    if not isinstance(problem, Folder):
        return ""
    target = [] if problem.task == "mean" else [problem.target]
    names = f"the columns {', '.join([*problem.columns, *target])}" if problem.columns else "this site's samples"
    return f".csv, .parquet or .npz with {names}"


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    if path.suffix == ".sh":
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _memory_mb(config: Config, sites: int, features: int) -> int:
    """The memory that a run may take on the server: with the Hessians that it asks for, where there are few weights."""
    weights = len(getattr(config.problem, "columns", None) or ()) or features or int(getattr(config.problem, "dim", 0))
    weights = max(weights + 1, 1)
    packed = weights * (weights + 1) // 2
    numbers = sites * max(packed if sites * packed <= MAX_NUMBERS else 0, config.problem.clusters, weights)
    return BASE_MB + COPIES * 8 * numbers // 2**20
