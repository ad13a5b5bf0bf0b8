"""A whole Callsheet behind a real socket, with a key for every role."""

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from callsheet.app import Callsheet
from callsheet.blobs.local import LocalBlobs
from callsheet.config import HttpSettings, Settings
from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.http.server import Server, bind

TENANT, OTHER = "default", "other"
SKETCH = Recipe(
    name="sketch",
    price=3,
    input_schema={"type": "object", "properties": {"prompt": {"type": "string"}}},
    stages=[StageSpec(name="draw", kind="draw")],
)
_STARTED_SECONDS = 20.0


class Served:
    """A server in a thread of this process; `client(role)` speaks to it."""

    def __init__(
        self, place: str | Path, data: Path, http: HttpSettings | None = None, settings: Settings | None = None,
        *, send_bytes: int | None = None, machine: bool = True,
    ) -> None:  # fmt: skip
        self.callsheet = Callsheet(place, data, settings, http)
        self.engine = self.callsheet.engine
        self.keys: dict[str, str] = {}
        self._machine = machine
        self._clients: list[httpx.Client] = []
        bound = bind("127.0.0.1", 0)
        if send_bytes is not None:  # what the system keeps for a reader that dawdles; connections inherit it
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self._ready = threading.Event()
        self._server = Server(self.callsheet.app, bound, self.callsheet.house.settings, self._ready.set)
        self._thread = threading.Thread(target=self._server.serve_here, name="served", daemon=True)

    def __enter__(self) -> Self:
        self.callsheet.start()
        self._thread.start()
        if not self._ready.wait(_STARTED_SECONDS):
            raise TimeoutError("the server did not start")
        self.keys["operator"] = self.callsheet.admin_key()[0].read_text().strip()
        operator = self.client("operator")
        for tenant in (TENANT, OTHER):
            operator.put(f"/v1/admin/tenants/{tenant}", json={}).raise_for_status()
            for role in ("admin", "client", "viewer"):
                name = role if tenant == TENANT else f"{tenant} {role}"
                body = {"name": name, "role": role, "tenant": tenant}
                self.keys[name] = operator.post("/v1/admin/keys", json=body).raise_for_status().json()["secret"]
        fleet = operator.post("/v1/admin/keys", json={"name": "fleet", "role": "worker"})
        self.keys["worker"] = fleet.raise_for_status().json()["secret"]
        if self._machine:
            self.keys["machine"] = self.register("m1")["token"]
        token = self.client("client").post("/v1/tokens", json={"user": "ann"})
        self.keys["user"] = token.raise_for_status().json()["token"]
        self.engine.execute(commands.PutWorkflow(recipe=SKETCH))
        for tenant in (TENANT, OTHER):
            self.engine.execute(commands.TopUp(tenant=tenant, user="ann", amount=1_000, idempotency_key="start"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self.stop()
        self.callsheet.close()

    def stop(self) -> None:
        """Stop serving, as a signal would; the engine stays."""
        self._server.should_exit = True
        self._thread.join()

    def client(self, role: str | None = None, headers: Mapping[str, str] | None = None) -> httpx.Client:
        """Return a client with the key of a role ("client", "other client", "user", …), or with none."""
        given = dict(headers or {})
        if role is not None:
            given["authorization"] = f"Bearer {self.keys[role]}"
        # There is no TLS here: without `verify` a client is made in a tenth of the time.
        made = httpx.Client(base_url=self.url, headers=given, timeout=30, verify=False)
        self._clients.append(made)
        return made

    @property
    def blobs(self) -> LocalBlobs:
        """The folder of files."""
        blobs = self.callsheet.house.blobs
        assert isinstance(blobs, LocalBlobs)
        return blobs

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._server.server_state.connections)

    def register(self, worker: str = "w1", *kinds: str, **more: Any) -> dict[str, Any]:
        """Register a worker under the fleet's secret, and return what it is told; its token is a key of that name."""
        body = {"worker": worker, "kinds": list(kinds or ("draw",))} | more
        told: dict[str, Any] = self.client("worker").post("/v1/worker/register", json=body).raise_for_status().json()
        self.keys[worker] = told["token"]
        return told

    def submit(self, role: str = "client", **more: Any) -> dict[str, Any]:
        """Submit a sketch of ann's and return it."""
        body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}} | more
        job: dict[str, Any] = self.client(role).post("/v1/jobs", json=body).raise_for_status().json()
        return job

    def work(self, kind: str = "draw", output: Any = None, worker: str = "w1") -> commands.TaskState:
        """Do one waiting task."""
        (leased,) = self.engine.execute(commands.Claim(worker_id=worker, kinds=(kind,)))
        state: commands.TaskState = self.engine.execute(commands.Complete(lease=leased.lease, output=output))
        return state
