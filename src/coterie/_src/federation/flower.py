"""All that Coterie uses of Flower beyond its documented interface, but for the control API, which is in `control`.

Documented by Flower, and imported anywhere, are `flwr.app`, `flwr.clientapp`, `flwr.serverapp`, `flwr.simulation` and
the commands. Not documented, and so pinned to the versions that are tested (`TESTED`), are:

- a message as a tree of objects, named by their SHA-256, and its parts (`flwr.supercore.inflatable`,
  `flwr.proto.message_pb2`);
- the Fleet API, by which a site takes questions from a SuperLink and sends replies: one POST of a protobuf message to
  `/v1/fleet/NAME`, with the site's key and a signed time in three headers (`flwr.proto.fleet_pb2`,
  `flwr.supercore.constant`);
- `HttpGrid`, by which a server app talks to its SuperLink, with its `_runtime_client` and `_run`;
- Flower's logger, and its codes of errors.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER, ErrorCode
from flwr.common.logger import log
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

__all__ = [
    "TESTED",
    "ErrorCode",
    "ObjectsError",
    "announced",
    "as_objects",
    "fleet_pb2",
    "header_of",
    "heartbeat_pb2",
    "http_grid",
    "log",
    "message_pb2",
    "node_pb2",
    "public_pem",
    "runtime_pb2",
    "signed_headers",
    "taken_apart",
]

TESTED = ("1.41.0", "1.42.0")
"""The versions of Flower with which the tests of federations pass. The package is installed with the first."""
MAX_OBJECTS = 32
"""Objects of a message with a small array; one with an update has six, and one more per chunk of Flower's 5 MB."""
BYTES_PER_OBJECT = 1 << 20
"""A larger message may have one object more for each of these."""
MEDIA_TYPE = "application/protobuf"


def http_grid(grid: Any) -> HttpGrid | None:
    """Return the grid, if it talks to a SuperLink over HTTP. It is loaded by servers alone: it takes a second."""
    return grid if isinstance(grid, import_module("flwr.superlink.grid").HttpGrid) else None


class ObjectsError(Exception):
    """Why the objects of a message are refused."""


def announced(tree: message_pb2.ObjectTree, max_bytes: int) -> list[str]:
    """Return the names of a message's objects, each once; too many for a message of this size are an ObjectsError."""
    most = MAX_OBJECTS + max_bytes // BYTES_PER_OBJECT
    names = [node.object_id for node in islice(iterate_object_tree(tree), most + 1)]
    if len(names) > most:
        raise ObjectsError(f"more than {most} objects")
    return list(dict.fromkeys(names))


def taken_apart(message_id: str, contents: dict[str, bytes], max_bytes: int) -> Message:
    """Return the message of these objects; what is larger than it may be is an ObjectsError, before it is joined."""
    if any(get_object_id(content) != name for name, content in contents.items()):
        raise ObjectsError("an object is not what its name says")
    size = sum(_size_taken_apart(content, contents) for content in contents.values())
    if size > 2 * max_bytes:  # the chunks of an array, and the array
        raise ObjectsError(f"more than {2 * max_bytes} bytes taken apart")
    message = inflate_object_from_contents(message_id, contents)
    if not isinstance(message, Message):
        raise ObjectsError("no message")
    return message


def _size_taken_apart(content: bytes, contents: Mapping[str, bytes]) -> int:
    """The bytes that an object takes; an array those of its chunks, each as often as it names it."""
    kind, children, body = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return len(content)
    told: Any = json.loads(content[-body:])
    return len(content) + sum(len(contents[children[i]]) for i in told["arraychunk_ids"])


def header_of(found: message_pb2.Message) -> Message:
    """Return a message without its content, as a SuperLink announces it."""
    return message_from_proto(found)


def as_objects(message: Message) -> tuple[message_pb2.Message, message_pb2.ObjectTree, dict[str, bytes]]:
    """Return a message as it is announced, the tree of its objects, and their contents by name."""
    message.metadata.__dict__["_message_id"] = ""
    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        tree = get_object_tree(message)
        contents = {name: found.deflate() for name, found in get_all_nested_objects(message).items()}
    return message_to_proto(remove_content_from_message(message) if message.has_content() else message), tree, contents


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key in the form in which the Fleet API names a site."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def signed_headers(key: ec.EllipticCurvePrivateKey, public: bytes) -> dict[str, str]:
    """Return the headers of one request, by which a SuperLink knows a site: its key, the time, and its signature."""
    time = now().isoformat()
    signature = key.sign(time.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    return {
        "content-type": MEDIA_TYPE,
        "accept": MEDIA_TYPE,
        "accept-encoding": "identity",
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode("ascii"),
        TIMESTAMP_HEADER: time,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
    }
