"""Flower's own `HttpGrid` in one process: its server is an object store, which sites fill as they like."""

# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, node_pb2, runtime_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

Objects = dict[str, bytes]
Upload = Callable[[Objects, message_pb2.ObjectTree], tuple[Objects, message_pb2.ObjectTree]]
"""From the objects of an honest reply and their tree to what a site uploads, and announces."""


class ObjectStore:
    """The part of Flower's server that a grid talks to."""

    def __init__(self, client: ClientApp, nodes: Iterable[int], uploads: dict[int, Upload]) -> None:
        self.client, self.nodes, self.uploads = client, list(nodes), uploads
        self.objects: dict[str, bytes] = {}
        self.announced: dict[str, Any] = {}
        self.asked: list[message_pb2.Message] = []
        self.confirmed: list[str] = []

    def GetNodes(self, request: Any) -> runtime_pb2.GetNodesResponse:
        return runtime_pb2.GetNodesResponse(nodes=[node_pb2.NodeInfo(node_id=node) for node in self.nodes])

    def PushMessages(self, request: runtime_pb2.PushAppMessagesRequest) -> runtime_pb2.PushAppMessagesResponse:
        self.asked = list(request.messages_list)
        names = {name for tree in request.message_object_trees for name in _names(tree)}
        return runtime_pb2.PushAppMessagesResponse(
            message_ids=[message.metadata.message_id for message in self.asked], objects_to_push=names
        )

    def PushObject(self, request: message_pb2.PushObjectRequest) -> message_pb2.PushObjectResponse:
        self.objects[request.object_id] = request.object_content
        return message_pb2.PushObjectResponse(stored=True)

    def _answer(self, asked: message_pb2.Message) -> None:
        """Let the node that is asked upload its reply."""
        node, name = asked.metadata.dst_node_id, asked.metadata.message_id
        question = inflate_object_from_contents(name, dict(self.objects))
        assert isinstance(question, Message)
        question.metadata.__dict__["_message_id"] = name
        reply = self.client(question, Context(1, node, {"partition-id": node % 100}, RecordDict(), {}))
        reply.metadata.__dict__.update({"_src_node_id": node, "_message_id": ""})
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {key: found.deflate() for key, found in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
        header = message_to_proto(remove_content_from_message(reply))
        if node in self.uploads:
            objects, tree = self.uploads[node](objects, tree)
            header.metadata.message_id = tree.object_id
        self.objects |= objects
        self.announced[name] = (header, tree)

    def PullMessages(self, request: runtime_pb2.PullAppMessagesRequest) -> runtime_pb2.PullAppMessagesResponse:
        for message in self.asked:  # here and not when they are pushed, which happens in threads
            self._answer(message)
        self.asked = []
        found = [self.announced.pop(name) for name in request.message_ids if name in self.announced]
        return runtime_pb2.PullAppMessagesResponse(
            messages_list=[header for header, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def PullObject(self, request: message_pb2.PullObjectRequest) -> message_pb2.PullObjectResponse:
        content = self.objects.get(request.object_id)  # None: let go; empty: announced and not here
        return message_pb2.PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> message_pb2.ConfirmMessageReceivedResponse:
        self.confirmed.append(request.message_object_id)
        return message_pb2.ConfirmMessageReceivedResponse()


def http_grid(client: ClientApp, nodes: Iterable[int], uploads: dict[int, Upload] | None = None) -> HttpGrid:
    """Return a grid whose server is an `ObjectStore`."""
    grid = HttpGrid(token="here")
    grid._client = ObjectStore(client, nodes, uploads or {})  # type: ignore[assignment]
    grid._run = Run.create_empty(1)
    return grid


def _names(tree: message_pb2.ObjectTree) -> list[str]:
    return [tree.object_id, *(name for child in tree.children for name in _names(child))]


def withheld(objects: Objects, tree: message_pb2.ObjectTree) -> tuple[Objects, message_pb2.ObjectTree]:
    """The reply is announced, and never comes."""
    return dict.fromkeys(objects, b""), tree


def broken_off(objects: Objects, tree: message_pb2.ObjectTree) -> tuple[Objects, message_pb2.ObjectTree]:
    """The reply is announced, and Flower's server has given up waiting for it."""
    return {}, tree


def _changed(objects: Objects, tree: message_pb2.ObjectTree, kind: str, change: Callable[[bytes], bytes]) -> Any:
    """Change the objects of a kind, and the names of all that hold them."""
    children, names = [], {}
    for child in tree.children:
        objects, changed = _changed(objects, child, kind, change)
        children.append(changed)
        names[child.object_id] = changed.object_id
    content = objects[tree.object_id]
    for old, new in names.items():
        content = content.replace(old.encode(), new.encode())
    if content.startswith(kind.encode() + b" "):
        content = change(content)
    head, body = content.split(b"\x00", 1)
    what, held, _ = head.split(b" ")
    content = b" ".join([what, held, str(len(body)).encode()]) + b"\x00" + body
    name = get_object_id(content)
    return {**objects, name: content}, message_pb2.ObjectTree(object_id=name, children=children)


def naming_its_chunk(times: int, size: int) -> Upload:
    """An array that names its one chunk, of many bytes, many times."""

    def upload(objects: Objects, tree: message_pb2.ObjectTree) -> tuple[Objects, message_pb2.ObjectTree]:
        def change(content: bytes) -> bytes:
            found = content.replace(b'"arraychunk_ids": [0]', f'"arraychunk_ids": {[0] * times}'.encode())
            assert found != content
            return found

        return _changed(*with_chunk_of(size)(objects, tree), "Array", change)  # type: ignore[no-any-return]

    return upload


def with_chunk_of(size: int) -> Upload:
    """A chunk of many bytes."""
    return lambda objects, tree: _changed(objects, tree, "ArrayChunk", lambda content: content + bytes(size))


def with_many_objects(count: int) -> Upload:
    """A reply that announces many objects."""

    def upload(objects: Objects, tree: message_pb2.ObjectTree) -> tuple[Objects, message_pb2.ObjectTree]:
        more = [message_pb2.ObjectTree(object_id=f"{i:064x}") for i in range(count)]
        return objects, message_pb2.ObjectTree(object_id=tree.object_id, children=[*more, *tree.children])

    return upload
