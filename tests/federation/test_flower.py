"""What is used of Flower beyond its documented interface stands in two modules, and the installed version has it."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supernode.fleet_http_client import FleetHttpClient

import coterie
from coterie._src.federation import flower
from coterie._src.federation.certificates import node_key
from coterie._src.federation.fleet import MAX_AHEAD, MAX_BEHIND, read_key

DOCUMENTED = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
SOURCE = Path(coterie.__file__).parent


def modules_of_flower(file: Path) -> set[str]:
    """The modules of Flower that a file imports when it runs."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    checked = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))]
    nodes = [found for node in checked for found in ast.walk(node)]
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in named if name.split(".")[0] == "flwr"}


def test_two_modules_use_what_flower_does_not_document() -> None:
    using = {file.name: found for file in SOURCE.rglob("*.py") if (found := modules_of_flower(file) - set(DOCUMENTED))}
    assert set(using) == {"flower.py", "control.py"}, using


def test_the_version_of_flower_that_is_installed_is_a_tested_one() -> None:
    assert version("flwr") in flower.TESTED


def test_a_message_survives_its_objects() -> None:
    content = RecordDict({"centres": ArrayRecord({"centres": Array(np.arange(6.0).reshape(2, 3))})})
    header, tree, contents = flower.as_objects(Message(content, 1, "train"))
    names = flower.announced(tree, 1 << 16)
    assert set(names) == set(contents)
    assert len(names) == 5
    found = flower.taken_apart(tree.object_id, dict(contents), 1 << 16)
    np.testing.assert_array_equal(found.content.array_records["centres"]["centres"].numpy(), [[0, 1, 2], [3, 4, 5]])
    assert not flower.header_of(header).has_content() or not flower.header_of(header).content


def test_requests_are_signed_as_flower_s_own_client_signs_them(tmp_path: Path) -> None:
    """The server checks them in `test_resident`; here, that it would still ask for these headers and bounds."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
    from flwr.superlink.routers.fleet import node_auth

    private, _ = node_key()
    (tmp_path / "node.key").write_bytes(private)
    key = read_key(tmp_path / "node.key")
    headers = flower.signed_headers(key, flower.public_pem(key))
    asked = {node_auth.FLEET_HTTP_PUBLIC_KEY_HEADER, node_auth.FLEET_HTTP_SIGNATURE_HEADER, node_auth.TIMESTAMP_HEADER}
    assert asked <= set(headers)
    assert (MAX_AHEAD, MAX_BEHIND) == (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE)
    calls = {name for name in vars(FleetHttpClient) if name[0].isupper()}
    assert calls >= {"RegisterNode", "ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages"}
