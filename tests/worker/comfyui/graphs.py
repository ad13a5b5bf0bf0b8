"""Graphs that need no model weights: built-in nodes, and test nodes that sleep or fail."""

import itertools
from typing import Any

Graph = dict[str, Any]
_numbers = itertools.count(1)


def _node(name: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": name, "inputs": inputs}


def _image(color: int = 3_368_601, count: int = 1, width: int = 64) -> dict[str, Any]:
    return _node("EmptyImage", width=width, height=48, batch_size=count, color=color)


def basic(color: int | None = None) -> Graph:
    """Four nodes and a picture, with a new color by default, so that nothing is cached."""
    return {
        "1": _image(next(_numbers) if color is None else color),
        "2": _node("ImageScale", image=["1", 0], upscale_method="lanczos", width=32, height=24, crop="disabled"),
        "3": _node("ImageInvert", image=["2", 0]),
        "9": _node("SaveImage", images=["3", 0], filename_prefix="callsheet/basic"),
    }


def upload() -> Graph:
    return {
        "10": _node("LoadImage", image=""),
        "11": _node("ImageScale", image=["10", 0], upscale_method="bilinear", width=8, height=8, crop="center"),
        "13": _node("PreviewImage", images=["11", 0]),
        "9": _node("SaveImage", images=["11", 0], filename_prefix="callsheet/upload"),
    }


def video() -> Graph:
    return {
        "1": _image(count=4),
        "3": _node("EmptyAudio", duration=1.0, sample_rate=44_100, channels=2),
        "4": _node("CreateVideo", images=["1", 0], fps=24.0, audio=["3", 0]),
        "9": _node("SaveVideo", video=["4", 0], filename_prefix="callsheet/video", format="mp4", codec="h264"),
    }


def animation() -> Graph:
    more = {"images": ["1", 0], "filename_prefix": "callsheet/anim", "fps": 8.0}
    return {
        "1": _image(count=4),
        "8": _node("SaveAnimatedWEBP", **more, lossless=False, quality=80, method="fastest"),
        "9": _node("SaveWEBM", **more, codec="vp9", crf=40.0),
    }


def audio() -> Graph:
    return {
        "1": _node("EmptyAudio", duration=0.5, sample_rate=44_100, channels=2),
        "8": _node("SaveAudio", audio=["1", 0], filename_prefix="callsheet/audio"),
        "9": _node("SaveAudioMP3", audio=["1", 0], filename_prefix="callsheet/audio", quality="128k"),
    }


def text(words: str = "a red fox") -> Graph:
    return {
        "1": _node("PrimitiveString", value=words),
        "2": _node("StringConcatenate", string_a=["1", 0], string_b="in the snow", delimiter=" "),
        "9": _node("PreviewAny", source=["2", 0]),
    }


def third_party() -> Graph:
    return {
        "1": _image(count=2),
        "2": _node("EmptyAudio", duration=0.5, sample_rate=44_100, channels=1),
        "8": _node("ThirdPartyVideo", images=["1", 0], filename_prefix="vhs"),
        "9": _node("ThirdPartySound", audio=["2", 0], filename_prefix="sound"),
    }


def websocket_images(frames: int = 5) -> Graph:
    """Sends its pictures over the WebSocket and saves none."""
    return {"1": _image(count=frames), "9": _node("SaveImageWebsocket", images=["1", 0])}


def streamed_and_saved(frames: int) -> Graph:
    """Sends its pictures over the WebSocket, then saves one."""
    return websocket_images(frames) | {"90": _node("SaveImage", images=["1", 0], filename_prefix="callsheet/shown")}


def slow(seconds: float = 0.2, steps: int = 10) -> Graph:
    return {
        "1": _image(255),
        "2": _node("CallsheetTestSleep", image=["1", 0], seconds=seconds, steps=steps, nonce=next(_numbers)),
        "9": _node("SaveImage", images=["2", 0], filename_prefix="callsheet/sleep"),
    }


def failing(message: str = "boom", kind: str = "runtime") -> Graph:
    """Saves one picture, then fails."""
    return {
        "1": _image(next(_numbers)),
        "7": _node("SaveImage", images=["1", 0], filename_prefix="callsheet/partial_ok"),
        "8": _node("CallsheetTestFail", image=["1", 0], message=message, kind=kind),
        "9": _node("SaveImage", images=["8", 0], filename_prefix="callsheet/never"),
    }


def half_valid() -> Graph:
    return basic() | {"8": _node("SaveImage", filename_prefix="bad")}
