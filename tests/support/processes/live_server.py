"""A complete Callsheet server on a real socket, with a key for every role."""

import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from callsheet.app import Callsheet
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.listener.uvicorn_server import Server, bind
from callsheet.http.server.mounted_api import Api
from callsheet.settings import HttpSettings, Settings

TENANT, OTHER_TENANT = "default", "other"
SKETCH = WorkflowDefinition(
    name="sketch",
    price=3,
    input_schema={"type": "object", "properties": {"prompt": {"type": "string"}}},
    stages=[StageSpec(name="draw", kind="draw")],
)
_START_SECONDS_MAX = 20.0


class LiveServer:
    """A server in a thread of this process; `client(role)` returns an HTTP client for it."""

    def __init__(
        self, database_url: str | Path, data: Path, http: HttpSettings | None = None, settings: Settings | None = None,
        *, send_bytes: int | None = None, register_worker: bool = True, apis: Sequence[Api] = (),
    ) -> None:  # fmt: skip
        self.callsheet = Callsheet(database_url, data, settings, http, apis=apis)
        self.engine = self.callsheet.engine
        self.keys: dict[str, str] = {}
        self._register_worker = register_worker
        self._clients: list[httpx.Client] = []
        listening_socket = bind("127.0.0.1", 0)
        if send_bytes is not None:  # the send buffer for slow readers, which connections inherit
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        self.url = f"http://127.0.0.1:{listening_socket.getsockname()[1]}"
        self._ready = threading.Event()
        api_sockets = self.callsheet.bind_api_ports("127.0.0.1")
        self.api_ports = [one.getsockname()[1] for one in api_sockets]
        self._server = Server(
            self.callsheet.app, listening_socket, self.callsheet.state.settings, self._ready.set, api_sockets
        )
        self._thread = threading.Thread(target=self._server.serve_on_socket, name="served", daemon=True)

    def __enter__(self) -> Self:
        self.callsheet.start()
        self._thread.start()
        if not self._ready.wait(_START_SECONDS_MAX):
            raise TimeoutError("the server did not start")
        self.keys["operator"] = self.callsheet.ensure_admin_key()[0].read_text().strip()
        operator = self.client("operator")
        for tenant in (TENANT, OTHER_TENANT):
            operator.put(f"/v1/admin/tenants/{tenant}", json={}).raise_for_status()
            for role in ("admin", "client", "viewer"):
                name = role if tenant == TENANT else f"{tenant} {role}"
                body = {"name": name, "role": role, "tenant": tenant}
                self.keys[name] = operator.post("/v1/admin/keys", json=body).raise_for_status().json()["secret"]
        fleet = operator.post("/v1/admin/keys", json={"name": "fleet", "role": "worker"})
        self.keys["worker"] = fleet.raise_for_status().json()["secret"]
        if self._register_worker:
            self.keys["machine"] = self.register("m1")["token"]
        token = self.client("client").post("/v1/tokens", json={"user": "ann"})
        self.keys["user"] = token.raise_for_status().json()["token"]
        self.engine.execute(commands.PutWorkflow(definition=SKETCH))
        for tenant in (TENANT, OTHER_TENANT):
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
        """Stop the HTTP server, as a signal would; the engine stays open."""
        self._server.should_exit = True
        self._thread.join()

    def client(self, role: str | None = None, headers: Mapping[str, str] | None = None) -> httpx.Client:
        """Return a client with the key of a role ("client", "other client", "user", …), or with none."""
        request_headers = dict(headers or {})
        if role is not None:
            request_headers["authorization"] = f"Bearer {self.keys[role]}"
        # There is no TLS here, and creating a client without `verify` takes a tenth of the time.
        client = httpx.Client(base_url=self.url, headers=request_headers, timeout=30, verify=False)
        self._clients.append(client)
        return client

    @property
    def blobs(self) -> LocalBlobs:
        """The storage of files."""
        blobs = self.callsheet.state.blobs
        assert isinstance(blobs, LocalBlobs)
        return blobs

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.server_state.connections)

    def register(self, worker: str = "w1", *kinds: str, **fields: Any) -> dict[str, Any]:
        """Register a worker with the fleet key and return the answer; its token becomes the key of that name."""
        body = {"worker": worker, "kinds": list(kinds or ("draw",))} | fields
        registration: dict[str, Any] = (
            self.client("worker").post("/v1/worker/register", json=body).raise_for_status().json()
        )
        self.keys[worker] = registration["token"]
        return registration

    def submit(self, role: str = "client", **fields: Any) -> dict[str, Any]:
        """Submit a sketch for ann and return the job."""
        body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}} | fields
        job: dict[str, Any] = self.client(role).post("/v1/jobs", json=body).raise_for_status().json()
        return job

    def work(self, kind: str = "draw", output: Any = None, worker: str = "w1") -> commands.TaskState:
        """Claim and complete one queued task."""
        (leased,) = self.engine.execute(commands.Claim(worker_id=worker, kinds=(kind,)))
        state: commands.TaskState = self.engine.execute(commands.Complete(lease=leased.lease, output=output))
        return state
