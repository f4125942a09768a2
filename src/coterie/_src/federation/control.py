"""Flower's control API on loopback: which keys are known, and the runs of a server.

What is used of Flower 1.41 is not public: `flwr.supercore`, `flwr.proto`, `flwr.common.config` and `flwr.cli.build`.
The commands `flwr run` and `flwr supernode` do the same, and take a second or two each.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import parse_config_args
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from coterie._src.experiments.printable import printable

PROJECT = "pyproject.toml"
logging.getLogger("httpx").setLevel(logging.WARNING)  # else it notes every request


class RunState(NamedTuple):
    """What Flower's server says about a run."""

    number: int
    finished: bool
    succeeded: bool = False
    stopped: bool = False
    details: str = ""


class Node(NamedTuple):
    """A node whose key the server knows."""

    number: int
    key: bytes  # as `key_bytes` gives it
    online: bool


def key_bytes(key: EllipticCurvePublicKey) -> bytes:
    """A public key in the form in which Flower's server knows it."""
    return public_key_to_bytes(key)


class Control:
    """The control API of a server on this machine.

    Parameters
    ----------
    port
        Of loopback.
    authority
        The file of the authority's certificate; None for a connection without TLS.
    """

    def __init__(self, port: int, authority: Path | None = None) -> None:
        certificate = None if authority is None else authority.read_bytes()
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", insecure=authority is None, root_certificates=certificate, interceptors=()
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def answers(self) -> bool:
        """Whether the server answers."""
        try:
            self._client.ListNodes(ListNodesRequest())
        except (httpx.HTTPError, OSError):
            return False
        return True

    def nodes(self) -> list[Node]:
        """The nodes whose keys are known."""
        with _refusals():
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [Node(one.node_id, one.public_key, one.status == "online") for one in found if not one.unregistered_at]

    def register(self, key: EllipticCurvePublicKey) -> int | None:
        """Make a key known and return its node; None where it was known before, even if it was withdrawn since."""
        with _refusals():
            try:
                found = self._client.RegisterNode(RegisterNodeRequest(public_key=key_bytes(key))).node_id
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    return None
                raise
        return int(found) or None

    def unregister(self, node: int) -> None:
        """Withdraw the key of a node for good: it is refused from now on."""
        with _refusals():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def start(self, app: Path, settings: Sequence[str], folder: Path) -> int:
        """Start a run of an app and return its number.

        settings: such as "deadline=20.0 min_clients=5". folder: of the results.
        """
        if not self.answers():
            raise ValueError("server: does not answer; is it started (start.sh)?")
        if not (app / PROJECT).is_file():
            raise ValueError(f"{app}: the app is missing; it belongs beside the folder of the server")
        try:
            known, _ = load_and_validate(app / PROJECT)
            given = parse_config_args([one for one in settings if one.strip()])
            names = sorted(known["tool"]["flwr"]["app"].get("config", {}))
            if unknown := sorted(given.keys() - set(names)):
                raise ValueError(f"settings: a run has no {unknown[0]!r}; it has {', '.join(names)}")
            content = build_fab_from_disk(app)
        except click.ClickException as error:
            raise ValueError(f"run: {error.format_message()}") from None
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
            override_config=user_config_to_proto({**given, "folder": str(folder)}),
        )
        with _refusals():
            return int(self._client.StartRun(request).run_id)

    def logs(self, run: int) -> Iterator[str]:
        """Yield the log of a run until it ends."""
        with _refusals():
            for part in self._client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=0.0)):
                yield part.log_output

    def state(self, run: int) -> RunState:
        """The state of a run."""
        with _refusals():
            status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return RunState(
            run,
            status.status == Status.FINISHED,
            status.sub_status == SubStatus.COMPLETED,
            status.sub_status == SubStatus.STOPPED,
            printable(status.details, 1000),
        )

    def unfinished(self) -> list[int]:
        """The runs that have not ended."""
        with _refusals():
            found = self._client.ListRuns(ListRunsRequest()).run_dict
        return sorted(number for number, run in found.items() if run.status.status != Status.FINISHED)

    def stop(self, run: int) -> None:
        """Stop a run; nothing happens where it has ended."""
        with _refusals():
            self._client.StopRun(StopRunRequest(run_id=run))


@contextmanager
def _refusals() -> Iterator[None]:
    """What the server says instead of an answer, as a ValueError."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        raise ValueError(f"server: refuses ({printable(str(told or error), 300)})") from None
    except httpx.HTTPError as error:
        raise ValueError(f"server: does not answer ({printable(str(error), 300)}); is it started?") from None
