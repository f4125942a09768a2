"""Flower's own SuperLink, served from a thread of this process, which is also the server app of its runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app

from coterie._src.federation.deployment import free_port
from coterie._src.federation.fleet import read_key
from coterie._src.federation.flower import public_pem

HASH = "0" * 64
"""Of an app that does not exist: a site that asks for it gets an error."""


class SuperLink:
    """A SuperLink on loopback.

    Parameters
    ----------
    place
        A folder of a deployment, whose server's certificate it uses; None: without encryption.
    key_checked
        Whether sites must be registered.
    """

    def __init__(self, place: Path | None = None, key_checked: bool = False, port: int = 0) -> None:
        self.app, self.place, self.port = create_app(), place, port or free_port()
        self.app.state.enable_supernode_auth = key_checked
        self.requests: list[str] = []
        self.grids: list[HttpGrid] = []
        self.state = self.app.state.linkstate_factory.state()
        self._server = self._begin()

    def _begin(self) -> uvicorn.Server:
        server = None if self.place is None else self.place / "server"
        files = (
            {}
            if server is None
            else {"ssl_certfile": str(server / "server.pem"), "ssl_keyfile": str(server / "server.key")}
        )
        config = uvicorn.Config(
            self._counting, port=self.port, log_level="critical", interface="asgi3", loop="asyncio", ws="none", **files
        )
        found = uvicorn.Server(config)
        self._thread = threading.Thread(target=found.run, daemon=True)
        self._thread.start()
        while not found.started and self._thread.is_alive():
            time.sleep(0.01)
        return found

    async def _counting(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.requests.append(scope["path"].rpartition("/")[2])
        await self.app(scope, receive, send)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End the server; what it knows stays."""
        for grid in self.grids:
            grid._disconnect()
        self._server.should_exit = True
        self._thread.join(timeout=30)

    def start(self) -> None:
        """Serve again."""
        self._server = self._begin()

    def register(self, key: Path) -> int:
        """Register the key of a site."""
        return int(self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_pem(read_key(key)), 0))

    def run(self) -> HttpGrid:
        """Begin a run, and return the grid of its server app."""
        run = self.state.create_run(
            "a/b", "1.0.0", HASH, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        info = self.state.get_run_info(run_ids=[run])[0]
        (task,) = self.state.get_tasks(run_ids=[run])
        token = self.state.claim_task(task.task_id)
        assert token is not None
        assert self.state.activate_task(task.task_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run, 1
        certificate = None if self.place is None else (self.place / "server" / "ca.pem").read_bytes()
        grid = HttpGrid(self.address, self.place is None, certificate, token=token)
        grid.set_run(info)
        self.grids.append(grid)
        return grid
