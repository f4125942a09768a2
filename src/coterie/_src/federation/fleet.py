"""The connection of a site to its server: questions come, replies go, and nothing else is taken.

A site speaks Flower's Fleet API itself, as Flower's SuperNode does, but for two things: it never asks for the app that
the server would send, and it takes no answer that is longer than one may be. Every fault is one line for the site's
administrator.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import random
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

from coterie._src.federation.flower import (
    ObjectsError,
    announced,
    as_objects,
    fleet_pb2,
    header_of,
    heartbeat_pb2,
    message_pb2,
    node_pb2,
    public_pem,
    signed_headers,
    taken_apart,
)

HEARTBEAT_SECONDS = 30.0
"""A site is told to be alive so often; Flower counts on it for twice as long."""
TIMEOUT_SECONDS = 30.0
MAX_BEHIND, MAX_AHEAD = 300.0, 5.0
"""Seconds by which the clock of a site may differ from Flower's server."""
MAX_RESPONSE_BYTES = 32 << 20
"""Of one answer of the server; Flower sends arrays in pieces of 5 MB."""
UPLOAD_SECONDS = 60.0
"""How long a site waits, in all, for the parts of a question that is announced."""
RETRIES = 5
"""How often a call is repeated when the server is busy or the connection broke: after 0.1 s, and then twice as long."""
BUSY = (429, 502, 503, 504)
EXPIRED, NOT_YET_VALID, OTHER_HOST = 10, 9, 62
"""OpenSSL's codes of verification."""

Response = TypeVar("Response", bound=Any)


class FleetError(Exception):
    """Why the site cannot talk to its server, in one line."""


class NotAdmittedError(FleetError):
    """The server refuses this site."""


class RunEndedError(Exception):
    """The run that a question is of has ended, and nobody waits for the reply."""


class UnsendableError(Exception):
    """A reply that cannot be written as a message."""


class QuestionError(Exception):
    """A question that cannot be taken apart, or is larger than one may be."""

    def __init__(self, header: Message, why: str) -> None:
        super().__init__(why)
        self.header = header


class Identity(NamedTuple):
    """What a site connects with. certificates: of the authority that it trusts; None: without encryption."""

    server: str  # host:port
    certificates: Path | None
    key: Path | None  # None: a new key, for a server that admits anybody


class FleetConnection:
    """A connection to Flower's server.

    Parameters
    ----------
    identity
        The server, and how the site is known to it. The files are read again whenever the connection was lost.
    max_bytes
        The largest question, in bytes.
    node_id
        The number by which the server knew an earlier process of this site, which it may still count on: with it this
        process need not wait for admission. 0: none.
    """

    def __init__(self, identity: Identity, max_bytes: int, node_id: int = 0) -> None:
        self.identity, self.max_bytes = identity, max_bytes
        self.skew: float | None = None
        """Seconds by which this machine's clock is ahead of the server's, to about one; None before it is known."""
        self._node = node_pb2.Node(node_id=node_id) if node_id else None
        self._own_key = None if identity.key is not None else ec.generate_private_key(ec.SECP384R1())
        self._open()

    def _open(self) -> None:
        server, certificates, key = self.identity
        verify: ssl.SSLContext | bool = False
        if certificates is not None:
            try:
                verify = ssl.create_default_context(cafile=str(certificates))
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"{certificates}: cannot be read as certificates ({error})") from None
        self._key = self._own_key or read_key(key)
        self._public = public_pem(self._key)
        self._url = f"{'http' if certificates is None else 'https'}://{server}/v1/fleet"
        self._client = httpx.Client(verify=verify, follow_redirects=False, timeout=TIMEOUT_SECONDS)

    @property
    def node_id(self) -> int:
        """The number by which the server knows this site; 0 before it is admitted."""
        return 0 if self._node is None else int(self._node.node_id)

    def admit(self) -> None:
        """Ask the server for admission, unless it has been given."""
        if self._node is not None:
            return
        if self._own_key is not None:
            register = fleet_pb2.RegisterNodeFleetRequest(public_key=self._public)
            with contextlib.suppress(NotAdmittedError):  # it is registered, or must be by the server's administrator
                self._call("register-node", register, fleet_pb2.RegisterNodeFleetResponse)
        request = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_SECONDS)
        found = self._call("activate-node", request, fleet_pb2.ActivateNodeResponse)
        self._node = node_pb2.Node(node_id=found.node_id)

    def tell_alive(self) -> None:
        """Tell the server that this site is alive; for a thread of its own. What is wrong, the next `pull` finds."""
        if self._node is not None:
            request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_SECONDS)
            with contextlib.suppress(httpx.HTTPError, RuntimeError):  # the connection may just be closed
                self._send("send-node-heartbeat", request.SerializeToString(deterministic=True))

    def pull(self) -> Message | None:
        """Return the next question, or None where there is none."""
        found = self._call(
            "pull-messages", fleet_pb2.PullMessagesRequest(node=self._node), fleet_pb2.PullMessagesResponse
        )
        if not found.messages_list:
            return None
        try:
            header = header_of(found.messages_list[0])
        except Exception as error:  # whatever a hostile question raises
            why = f"sent a question that cannot be read ({type(error).__name__})"
            raise FleetError(f"{self.identity.server} {why}") from None
        try:
            contents = dict(self._contents(header, announced(found.message_object_trees[0], self.max_bytes)))
            message = taken_apart(header.metadata.message_id, contents, self.max_bytes)
        except (FleetError, RunEndedError):
            raise
        except Exception as error:
            why = str(error) if isinstance(error, ObjectsError) else type(error).__name__
            raise QuestionError(header, why) from None
        message.__dict__["_metadata"] = header.metadata
        return message

    def _contents(self, header: Message, names: list[str]) -> Iterator[tuple[str, bytes]]:
        run, total = header.metadata.run_id, 0
        waiting = UPLOAD_SECONDS
        for name in names:
            request, pause = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=name), 0.02
            while not (found := self._call("pull-object", request, message_pb2.PullObjectResponse)).object_available:
                if not found.object_found or waiting <= 0:
                    raise ObjectsError("a part of it is missing")
                time.sleep(pause)  # a question is announced before its parts are there
                waiting, pause = waiting - pause, min(1.5 * pause, 1.0)
            total += len(found.object_content)
            if total > self.max_bytes:
                raise ObjectsError(f"more than {self.max_bytes} bytes")
            yield name, bytes(found.object_content)
        request = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=header.metadata.message_id
        )
        self._call("confirm-message-received", request, message_pb2.ConfirmMessageReceivedResponse)

    def push(self, reply: Message) -> None:
        """Send a reply. How long the site computed is not told."""
        try:
            header, tree, contents = as_objects(reply)
        except Exception as error:  # such as of a number of more than 64 bits
            raise UnsendableError(f"{type(error).__name__}: {error}") from None
        found = self._call(
            "push-messages",
            fleet_pb2.PushMessagesRequest(
                node=self._node, messages_list=[header], message_object_trees=[tree], clientapp_runtime_list=[0.0]
            ),
            fleet_pb2.PushMessagesResponse,
        )
        for name in found.objects_to_push:
            if name in contents:
                request = message_pb2.PushObjectRequest(
                    node=self._node,
                    run_id=reply.metadata.run_id,
                    session_id=found.session_id,
                    object_id=name,
                    object_content=contents[name],
                )
                self._call("push-object", request, message_pb2.PushObjectResponse)

    def close(self) -> None:
        """Take leave of the server, if it can be reached, so that it waits for this site no longer."""
        if self._node is not None:
            request = fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id)
            with contextlib.suppress(httpx.HTTPError):
                self._send("deactivate-node", request.SerializeToString(deterministic=True), timeout=3.0)
            self._node = None
        self._client.close()

    def _call(self, name: str, request: Any, response: type[Response]) -> Response:
        """The server's answer; a busy server is asked again, and anything else is a fault."""
        body, last = request.SerializeToString(deterministic=True), FleetError("")
        for attempt in range(RETRIES + 1):
            if attempt:
                time.sleep(0.1 * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                status, content = self._send(name, body)
            except httpx.TransportError as error:
                last = FleetError(self._why_unreachable(error))
                if _verification(error) is not None:
                    break
                continue
            if status not in BUSY:
                return self._read(name, status, content, response)
            last = FleetError(f"{self.identity.server} is busy or its SuperLink does not run (HTTP {status})")
        self._open_again()
        raise last

    def _open_again(self) -> None:
        """Begin a new connection with the files as they are now. The site's number at the server stays."""
        before = self._client
        try:
            self._open()
        except ValueError:  # they are just being written
            return
        before.close()

    def _send(self, name: str, body: bytes, timeout: float = TIMEOUT_SECONDS) -> tuple[int, bytes]:
        """The status and the body of an answer, which is read no further than it may be long."""
        url, headers = f"{self._url}/{name}", signed_headers(self._key, self._public)
        began, content = time.time(), bytearray()
        with self._client.stream("POST", url, content=body, headers=headers, timeout=timeout) as found:
            self._note_clock(found.headers.get("date"), (began + time.time()) / 2)
            for part in found.iter_raw():
                content += part
                if len(content) > MAX_RESPONSE_BYTES:
                    raise httpx.RemoteProtocolError(f"it answers with more than {MAX_RESPONSE_BYTES} bytes")
        return found.status_code, bytes(content)

    def _note_clock(self, date: str | None, here: float) -> None:
        try:
            there = email.utils.parsedate_to_datetime(date or "").timestamp() + 0.5  # it is cut to whole seconds
        except (ValueError, TypeError, IndexError, OverflowError):
            return
        self.skew = here - there

    def _read(self, name: str, status: int, content: bytes, response: type[Response]) -> Response:
        server = self.identity.server
        if status == httpx.codes.OK:
            found: Response = response()
            try:
                found.ParseFromString(content)
            except Exception:  # what protobuf raises is no public class
                raise FleetError(f"{server} does not answer as Flower's server; is the address right?") from None
            return found
        if status == httpx.codes.UNAUTHORIZED:
            self._node = None
            raise NotAdmittedError(self.clock_fault() or f"{server} refuses this site: it does not know the site's key")
        if status == httpx.codes.PRECONDITION_FAILED:
            self._node = None
            raise NotAdmittedError(
                f"{server} refuses this site: its key is not registered there, or an earlier process of this site "
                f"counts as alive for another {2 * HEARTBEAT_SECONDS:.0f} s"
            )
        if status == httpx.codes.FORBIDDEN and name not in ("activate-node", "register-node", "pull-messages"):
            raise RunEndedError
        raise FleetError(f"{server} answers {name} with HTTP {status}; is it Flower's server?")

    def clock_fault(self) -> str:
        """Return what is wrong with this machine's clock, beside the server's; empty for nothing."""
        if self.skew is None or -MAX_BEHIND < self.skew < MAX_AHEAD:
            return ""
        way = "ahead of" if self.skew > 0 else "behind"
        return (
            f"{self.identity.server} refuses this site: this machine's clock is {abs(self.skew):.0f} s {way} the "
            f"server's, which admits at most {MAX_AHEAD:.0f} s ahead and {MAX_BEHIND:.0f} s behind; set the clocks"
        )

    def _why_unreachable(self, error: httpx.TransportError) -> str:
        server, found = self.identity.server, _verification(error)
        if found is None:
            return f"{server} cannot be reached ({' '.join(str(error).split())[:200] or type(error).__name__})"
        now = datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds")
        if found.verify_code == EXPIRED:
            return f"{server}: its certificate, or that of its authority, has expired (this machine's clock says {now})"
        if found.verify_code == NOT_YET_VALID:
            return f"{server}: its certificate is not yet valid; this machine's clock says {now}, is it right?"
        if found.verify_code == OTHER_HOST:
            return f"{server}: its certificate is for another name ({found.verify_message})"
        return (
            f"{server}: its certificate is not signed by the authority of {self.identity.certificates} "
            f"({found.verify_message}); it may be another server"
        )


def _verification(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The failed check of a certificate that an error was raised for."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ssl.SSLCertVerificationError):
        seen = seen.__cause__ or seen.__context__
    return seen


def read_key(path: Path | None) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file in OpenSSH's form."""
    assert path is not None
    try:
        found = serialization.load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception:  # several kinds, none of which may quote the key
        raise ValueError(f"{path}: is no private key in OpenSSH's form") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path}: must be a key on the curve P-384")
    return found
