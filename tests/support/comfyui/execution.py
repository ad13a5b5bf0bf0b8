"""The execution of a graph: node by node, with cache, messages, interrupts and errors."""

import hashlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.support.comfyui import sample_files
from tests.support.comfyui.nodes import NODES

Graph = dict[str, Any]
SendMessage = Callable[[str, dict[str, Any]], None]
HELD_SECONDS = 30.0
_PNG, _JPEG = 2, 1


class Frame(Protocol):
    """Sends a preview to the client, with metadata or without."""

    def __call__(self, picture: bytes, about: dict[str, Any], *, with_metadata: bool) -> None: ...


class Interrupted(Exception):  # noqa: N818 - an event, not an error
    """The prompt was interrupted."""


class Raised(Exception):  # noqa: N818 - an event of the double, not an error in it
    """A node failed: the type and the message of its Python exception."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Picture(NamedTuple):
    width: int
    height: int
    frames: int
    color: int


class Ended(NamedTuple):
    status: str
    messages: list[list[Any]]
    outputs: dict[str, Any]


def ms() -> int:
    return time.time_ns() // 1_000_000


def preview(picture: bytes, metadata: dict[str, Any] | None) -> bytes:
    """Return the binary frame of a preview, in the form with metadata or in the old form without."""
    png = picture.startswith(b"\x89PNG")
    if metadata is None:
        return struct.pack(">II", 1, _PNG if png else _JPEG) + picture
    body = json.dumps(metadata | {"image_type": "image/png" if png else "image/jpeg"}).encode()
    return struct.pack(">II", 4, len(body)) + body + picture


class Disk:
    """The folders of a server, which survive a restart."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for kind in ("input", "output", "temp"):
            (root / kind).mkdir(parents=True, exist_ok=True)

    def save(self, kind: str, prefix: str, ending: str, body: bytes) -> dict[str, str]:
        folder, _, name = prefix.rpartition("/")
        place = self.root / kind / folder
        place.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(p.name[len(name) + 1 :][:5]) for p in place.glob(f"{name}_[0-9]*")), default=0)
        file = place / f"{name}_{number:05}{ending}"
        file.write_bytes(body)
        return {"filename": file.name, "subfolder": folder, "type": kind}


class Execution:
    """One prompt being run."""

    def __init__(
        self, prompt_id: str, graph: Graph, outputs: list[str], client_id: str | None, version: str, *, disk: Disk,
        cache: dict[str, tuple[Any, dict[str, Any] | None]], send_message: SendMessage, frame: Frame,
    ) -> None:  # fmt: skip
        self.interrupt = threading.Event()
        self.held: dict[str, threading.Event] = {}
        """Nodes that wait for a test before they end; they ignore interrupts until then."""
        self.reached: set[str] = set()
        self.node = ""
        """The node that runs."""
        self.prompt_id, self.client_id, self._graph, self._outputs = prompt_id, client_id, graph, outputs
        self._new = version != "0.7.0"
        self._disk, self._cache, self._send_message, self._frame = disk, cache, send_message, frame
        self._messages: list[list[Any]] = []
        self._states: dict[str, dict[str, Any]] = {}
        self._values: dict[str, Any] = {}
        self._ui: dict[str, Any] = {}
        self._done: list[str] = []

    def run(self) -> Ended:
        """Run to the end and send the messages of a server."""
        order = list(self._order())
        signed = {node: self._signature(node) for node in order}
        cached = [node for node in order if signed[node] in self._cache]
        self._record_message("execution_start", {})
        self._record_message("execution_cached", {"nodes": cached})
        node = ""
        try:
            for node in order:
                self._check_interrupt()
                self._node(node, signed[node])
        except Interrupted:
            about = {"node_id": node, "node_type": self._class(node), "executed": self._done}
            self._record_message("execution_interrupted", about)
            return Ended("error", self._messages, self._ui)
        except Raised as error:
            self._record_message("execution_error", self._error_details(node, error))
            return Ended("error", self._messages, self._ui)
        self._record_message("execution_success", {})
        return Ended("success", self._messages, self._ui)

    def _check_interrupt(self) -> None:
        if self.interrupt.is_set():
            raise Interrupted

    def _error_details(self, node: str, error: Raised) -> dict[str, Any]:
        inputs = self._graph[node]["inputs"]
        return {
            "node_id": node, "node_type": self._class(node), "executed": self._done,
            "exception_message": f"{error}\n", "exception_type": error.kind, "traceback": ["<traceback lines>"],
            "current_inputs": {name: [value] for name, value in inputs.items() if not isinstance(value, list)},
            "current_outputs": list(self._graph),
        }  # fmt: skip

    def _record_message(self, kind: str, data: dict[str, Any]) -> None:
        message = {**data, "prompt_id": self.prompt_id, "timestamp": ms()}
        self._messages.append([kind, message])
        self._send_message(kind, message)

    def _class(self, node: str) -> str:
        return str(self._graph[node]["class_type"])

    def _order(self) -> Iterator[str]:
        seen: set[str] = set()

        def visit(node: str) -> Iterator[str]:
            if node in seen:
                return
            seen.add(node)
            for value in self._graph[node]["inputs"].values():
                if isinstance(value, list):
                    yield from visit(str(value[0]))
            yield node

        for output in self._outputs:
            yield from visit(output)

    def _signature(self, node: str) -> str:
        """Return what the result of a node depends on: all inputs, also those that the node does not have."""
        if self._class(node) == "SaveImageWebsocket":
            return f"{node} {time.monotonic_ns()}"
        parts: list[Any] = [node if NODES[self._class(node)].get("output_node") else "", self._class(node)]
        for name, value in sorted(self._graph[node]["inputs"].items()):
            parts.append([name, self._signature(str(value[0])) if isinstance(value, list) else value])
            if self._class(node) == "LoadImage":
                parts.append(hashlib.sha256((self._disk.root / "input" / value).read_bytes()).hexdigest())
        return json.dumps(parts)

    def _node(self, node: str, signature: str) -> None:
        if signature in self._cache:
            value, ui = self._cache[signature]
            self._values[node] = value
            if ui is not None:
                if self.client_id is not None or self._new:  # 0.7.0 drops it if the prompt has no client id
                    self._ui[node] = ui
                self._send_message("executed", self._executed(node, ui))
                self._state(node, 1, 1, "finished")
            return
        self._state(node, 0.0, 1.0, "running")
        self._send_message("executing", {"node": node, "display_node": node, "prompt_id": self.prompt_id})
        self.reached.add(node)
        self.node = node
        if gate := self.held.get(node):
            gate.wait(HELD_SECONDS)
        value, ui = self._run_node(node)
        self._values[node] = value
        if ui is not None:
            self._ui[node] = ui
            self._send_message("executed", self._executed(node, ui))
        self._cache[signature] = (value, ui)
        self._done.append(node)
        last = self._states[node]["max"]
        self._state(node, last, last, "finished")

    def _executed(self, node: str, ui: dict[str, Any]) -> dict[str, Any]:
        return {"node": node, "display_node": node, "output": ui, "prompt_id": self.prompt_id}

    def _identity(self, node: str) -> dict[str, Any]:
        about = {"node_id": node, "prompt_id": self.prompt_id, "display_node_id": node}
        return {**about, "parent_node_id": None, "real_node_id": node}

    def _state(self, node: str, value: float, most: float, state: str) -> None:
        self._states[node] = {"value": value, "max": most, "state": state, **self._identity(node)}
        self._send_message("progress_state", {"prompt_id": self.prompt_id, "nodes": dict(self._states)})

    def _send_progress(self, node: str, value: int, most: int, picture: bytes) -> None:
        self._check_interrupt()
        self._state(node, value, most, "running")
        about = self._identity(node)
        self._frame(picture, about, with_metadata=True)
        self._send_message("progress", {"value": value, "max": most, "prompt_id": self.prompt_id, "node": node})
        self._frame(picture, about, with_metadata=False)

    # -- nodes

    def _run_node(self, node: str) -> tuple[Any, dict[str, Any] | None]:
        inputs = {
            name: self._values[str(value[0])] if isinstance(value, list) else value
            for name, value in self._graph[node]["inputs"].items()
        }
        name = self._class(node)
        if NODES[name].get("output_node"):
            return None, self._save_outputs(node, name, inputs)
        return self._value(node, name, inputs), None

    def _value(self, node: str, name: str, inputs: dict[str, Any]) -> Any:
        picture: Any = inputs.get("image")
        if name.startswith("Image") and isinstance(picture, str):
            raise Raised("AttributeError", "'str' object has no attribute 'movedim'")
        if name == "EmptyImage":
            return Picture(inputs["width"], inputs["height"], inputs["batch_size"], inputs["color"])
        if name == "ImageScale":
            return picture._replace(width=inputs["width"], height=inputs["height"])
        if name == "ImageInvert":
            return picture._replace(color=0xFFFFFF ^ picture.color)
        if name == "LoadImage":
            return self._load_image(inputs["image"])
        if name == "StringConcatenate":
            return inputs["delimiter"].join((inputs["string_a"], inputs["string_b"]))
        if name == "CallsheetTestSleep":
            self._sleep_steps(node, inputs)
        if name == "CallsheetTestFail":
            kind = "torch.OutOfMemoryError" if inputs["kind"] == "oom" else "RuntimeError"
            raise Raised(kind, inputs["message"])
        return picture if picture is not None else inputs.get("value", inputs.get("images"))

    def _load_image(self, name: str) -> Picture:
        path = self._disk.root / "input" / name
        body = path.read_bytes()
        if not body.startswith(b"\x89PNG"):
            raise Raised("PIL.UnidentifiedImageError", f"cannot identify image file '/var/lib/comfyui/input/{name}'")
        width, height = struct.unpack(">II", body[16:24])
        return Picture(width, height, 1, 0)

    def _sleep_steps(self, node: str, inputs: dict[str, Any]) -> None:
        for step in range(inputs["steps"]):
            self.interrupt.wait(inputs["seconds"] / inputs["steps"])
            self._send_progress(node, step + 1, inputs["steps"], sample_files.JPEG)

    def _save_outputs(self, node: str, name: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
        prefix, tail = inputs.get("filename_prefix", ""), "_"
        images: Any = inputs.get("images")
        if name == "PreviewAny":
            return {"text": [str(inputs["source"])]}
        if name == "SaveImageWebsocket":
            for no in range(images.frames):
                self._send_progress(
                    node, no, images.frames, sample_files.png(images.width, images.height, images.color)
                )
            self._states[node] |= {"max": images.frames}
            return None
        if name in {"SaveImage", "PreviewImage"}:
            kind, prefix = ("output", prefix) if name == "SaveImage" else ("temp", "ComfyUI_temp_gbanv")
            body = sample_files.png(images.width, images.height, images.color)
            return {"images": [self._disk.save(kind, prefix, "_.png", body) for _ in range(images.frames)]}
        endings = {"SaveVideo": ("mp4", sample_files.MP4), "SaveWEBM": ("webm", sample_files.WEBM)}
        endings["SaveAnimatedWEBP"] = ("webp", sample_files.WEBP)
        if name in endings:
            ending, body = endings[name]
            return {"images": [self._disk.save("output", prefix, f"_.{ending}", body)], "animated": [True]}
        if name == "ThirdPartyVideo":
            saved = self._disk.save("output", prefix, "_.png", sample_files.MP4)  # with a wrong file name extension
            return {"gifs": [saved | {"format": "video/h264-mp4", "fullpath": f"/srv/{saved['filename']}"}]}
        if name == "ThirdPartySound":
            return {"files": [self._disk.save("output", prefix, "_.wav", sample_files.wav())]}
        tail = "" if self._new else "_"
        ending, body = ("mp3", sample_files.MP3) if name == "SaveAudioMP3" else ("flac", sample_files.FLAC)
        return {"audio": [self._disk.save("output", prefix, f"{tail}.{ending}", body)]}
