"""The state of a ComfyUI double: queue, history, cache and WebSockets, and the faults that tests inject."""

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.comfyui.asgi_server import Receive, Request, Response, RestartableServer, Scope, Send, wait_for_event
from tests.support.comfyui.execution import Disk, Ended, Execution, preview

OLD, NEW = "0.7.0", "0.33.0"
_ENDINGS = {"execution_success", "execution_error", "execution_interrupted"}


class VolatileState:
    """The state that a restart loses."""

    def __init__(self) -> None:
        self.number = 0
        self.pending: list[list[Any]] = []
        self.running: list[list[Any]] = []
        self.history: dict[str, dict[str, Any]] = {}
        self.cache: dict[str, Any] = {}
        self.execution: Execution | None = None
        self.stopped = False


class ServerState:
    """One server in threads of this process. It records its requests and runs."""

    def __init__(self, folder: Path, version: str = NEW) -> None:
        self.version = version
        self.disk = Disk(folder)
        self.requests: list[Request] = []
        self.runs: list[str] = []
        """The ids of started prompts, in order."""
        self.interrupts_lost = 0
        self.lost_answers: dict[str, int] = {}
        """The number of answers of a path that are lost after the effect."""
        self.gates: dict[str, threading.Event] = {}
        """Requests to a path wait for these events."""
        self.held: dict[str, threading.Event] = {}
        """Nodes wait for these events before they end."""
        self.refuse_websockets = False
        """Refuse new WebSockets."""
        self.ignore_feature_flags = False
        """Ignore the feature flags of clients, as versions without preview metadata do."""
        self.drop_previews = False
        """Send text messages only, no images."""
        self.frames_max: int | None = None
        """The number of images that are sent before all WebSockets are cut permanently."""
        self.encoding_gate: threading.Event | None = None
        """Images and later messages wait for this event, while the history already reports success."""
        self.answers: dict[str, list[Response]] = {}
        """Prepared answers of a path, one after another."""
        self._ram = VolatileState()
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._sockets: dict[str, tuple[Send, dict[str, Any]]] = {}
        self._closing: dict[str, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._send_lock = asyncio.Lock()
        """Keeps messages in order."""
        self._port = RestartableServer(self._app)
        self.url = self._port.url

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        for gate in (*self.gates.values(), *self.held.values(), self.encoding_gate or threading.Event()):
            gate.set()
        self.down()

    # -- faults

    def up(self) -> None:
        self._ram, self._send_lock = VolatileState(), asyncio.Lock()
        threading.Thread(target=self._run_queue, args=(self._ram,), name="comfy-executor", daemon=True).start()
        self._port.up()

    def down(self) -> None:
        """Stop immediately; the state in memory is lost."""
        with self._work:
            self._ram.stopped = True
            if self._ram.execution is not None:
                self._ram.execution.interrupt.set()
            self._work.notify_all()
        self._port.down()

    def restart(self) -> None:
        self.down()
        self.up()

    def cut_sockets(self) -> None:
        """Close every WebSocket: earlier messages are still delivered, later ones are not."""
        self._sockets, closing, self._closing = {}, self._closing, {}
        loop = self._loop
        if loop is not None:
            for one in closing.values():
                loop.call_soon_threadsafe(one.set)

    def hold(self, node: str) -> threading.Event:
        """Make a node wait, from its next start on, for the event that is returned."""
        self.held[node] = threading.Event()
        return self.held[node]

    @property
    def reached(self) -> set[str]:
        """The nodes that the running prompt has started."""
        execution = self._ram.execution
        return set(execution.reached) if execution else set()

    @property
    def listeners(self) -> int:
        return len(self._sockets)

    def requests_to(self, path: str) -> list[Request]:
        return [one for one in self.requests if one.path == path]

    @property
    def queue(self) -> dict[str, list[str]]:
        with self._lock:
            return {"running": [item[1] for item in self._ram.running], "pending": [i[1] for i in self._ram.pending]}

    @property
    def history(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            return dict(self._ram.history)

    def drop(self, prompt_id: str) -> None:
        """Lose one pending prompt, or its history."""
        with self._lock:
            self._ram.pending = [item for item in self._ram.pending if item[1] != prompt_id]
            self._ram.history.pop(prompt_id, None)

    # -- running

    def _run_queue(self, ram: VolatileState) -> None:
        while True:
            with self._work:
                if self._work.wait_for(lambda: ram.stopped or ram.pending) is True:
                    return
                ram.pending.sort(key=lambda item: item[0])
                item = ram.pending.pop(0)
                ram.running.append(item)
                ram.execution = self._execution(ram, item)
                self.runs.append(item[1])
            self._status()
            ended = ram.execution.run()
            with self._work:
                if self._ram is not ram or ram.stopped:
                    return
                ram.running.remove(item)
                ram.execution = None
                ram.history[item[1]] = entry_of(item, ended)
            self._status()
            self._send_message(item[3].get("client_id"), "executing", {"node": None, "prompt_id": item[1]})

    def _execution(self, ram: VolatileState, item: list[Any]) -> Execution:
        client = item[3].get("client_id")

        def frame(picture: bytes, about: dict[str, Any], *, with_metadata: bool) -> None:
            known = self._sockets.get(client or "")
            if (
                known is None
                or bool(known[1].get("supports_preview_metadata")) is not with_metadata
                or self._preview_blocked()
            ):
                return
            self._send(known, preview(picture, about if with_metadata else None))

        execution = Execution(
            item[1], item[2], item[4], client, self.version, disk=self.disk, cache=ram.cache,
            send_message=lambda kind, data: self._send_message(client, kind, data), frame=frame,
        )  # fmt: skip
        execution.held = self.held
        return execution

    def _preview_blocked(self) -> bool:
        """Return whether no more images are sent, and cut the connections after the last one."""
        if self.frames_max is None:
            return self.drop_previews
        self.frames_max -= 1
        if self.frames_max < 0:
            self.refuse_websockets = True
            self.cut_sockets()
        return self.refuse_websockets

    # -- messages

    def _send_message(self, client: str | None, kind: str, data: dict[str, Any]) -> None:
        known = self._sockets.get(client or "")
        if known is not None:
            self._send(known, json.dumps({"type": kind, "data": data}))

    def _status(self) -> None:
        for client in list(self._sockets):
            self._send_message(client, "status", {"status": self._info()})

    def _info(self) -> dict[str, Any]:
        with self._lock:
            return {"exec_info": {"queue_remaining": len(self._ram.pending) + len(self._ram.running)}}

    def _send(self, known: tuple[Send, dict[str, Any]], message: str | bytes) -> None:
        async def deliver() -> None:
            kind = "bytes" if isinstance(message, bytes) else "text"
            async with self._send_lock:
                if self.encoding_gate is not None and kind == "bytes":
                    await wait_for_event(self.encoding_gate, 30.0)
                with contextlib.suppress(Exception):  # the client has disconnected
                    await known[0]({"type": "websocket.send", kind: message})

        loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: loop.create_task(deliver()))

    def _interrupt(self, prompt_id: str | None) -> bool:
        with self._lock:
            execution = self._ram.execution
            if execution is None or (prompt_id and execution.prompt_id != prompt_id):
                return False
            if self.interrupts_lost:
                self.interrupts_lost -= 1
            else:
                execution.interrupt.set()
            return True

    def _canceled(self, prompt_id: str) -> bool:
        with self._lock:
            waiting = [item for item in self._ram.pending if item[1] == prompt_id]
            self._ram.pending = [item for item in self._ram.pending if item[1] != prompt_id]
        return bool(waiting) or self._interrupt(prompt_id)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Subclasses implement it."""
        raise NotImplementedError


def entry_of(item: list[Any], ended: Ended) -> dict[str, Any]:
    status = {"status_str": ended.status, "completed": ended.status == "success", "messages": ended.messages}
    meta = {
        node: {"node_id": node, "display_node": node, "parent_node": None, "real_node_id": node}
        for node in ended.outputs
    }
    return {"prompt": item, "outputs": ended.outputs, "status": status, "meta": meta}


def job_of(version: str, item: list[Any], entry: dict[str, Any] | None, *, running: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"id": item[1], "status": "in_progress" if running else "pending", "priority": item[0]}
    body["create_time"] = item[3]["create_time"]
    outputs = [one for ui in (entry or {}).get("outputs", {}).values() for values in ui.values() for one in values]
    files = [output for output in outputs if isinstance(output, dict)]
    body["outputs_count"] = len(files)
    if version == NEW:
        body["previewable_outputs_count"] = len(files)
    if entry is None:
        return body
    first = _preview(entry["outputs"])
    if first is not None and (version == NEW or "filename" in first):
        body["preview_output"] = first
    messages = dict(entry["status"]["messages"])
    interrupted = "execution_interrupted" in messages
    if entry["status"]["completed"]:
        body["status"] = "completed"
    else:
        body["status"] = "cancelled" if interrupted and version == NEW else "failed"
    body["execution_start_time"] = messages["execution_start"]["timestamp"]
    body["execution_end_time"] = next(data["timestamp"] for kind, data in messages.items() if kind in _ENDINGS)
    if "execution_error" in messages:
        body["execution_error"] = messages["execution_error"]
    graph, extra = item[2], item[3]
    return body | {
        "outputs": entry["outputs"], "execution_status": entry["status"],
        "workflow": {"prompt": graph, "extra_data": extra},
    }  # fmt: skip


def _preview(outputs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the preview of a job in a list: a saved file before a temporary one, else a text."""
    found: list[dict[str, Any]] = []
    for node, ui in outputs.items():
        for key, values in ui.items():
            for one in values:
                if isinstance(one, dict):
                    found.append({**one, "nodeId": node, "mediaType": key})
                elif isinstance(one, str):
                    found.append({"content": one, "nodeId": node, "mediaType": key})
    return next((one for one in found if one.get("type") == "output"), found[0] if found else None)
