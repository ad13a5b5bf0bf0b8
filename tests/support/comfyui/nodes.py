"""The nodes of the double with their inputs and outputs, as in `/object_info` of a stock server."""

from typing import Any

INT, FLOAT, STRING, IMAGE, AUDIO, VIDEO = "INT", "FLOAT", "STRING", "IMAGE", "AUDIO", "VIDEO"
_SIDE = [INT, {"default": 512, "min": 1, "max": 16384, "step": 1}]
_SCALED = [INT, {"default": 512, "min": 0, "max": 16384, "step": 1}]
_TEXT = [STRING, {"multiline": False}]


def _prefix(default: str = "ComfyUI") -> list[Any]:
    return [STRING, {"default": default, "multiline": False}]


def _number(kind: str, least: float, most: float) -> list[Any]:
    return [kind, {"min": least, "max": most}]


def _combo(*options: str) -> list[Any]:
    return ["COMBO", {"multiselect": False, "options": list(options)}]


NODES: dict[str, dict[str, Any]] = {
    "EmptyImage": {
        "required": {
            "width": _SIDE, "height": _SIDE, "batch_size": [INT, {"default": 1, "min": 1, "max": 4096}],
            "color": [INT, {"default": 0, "min": 0, "max": 16777215, "step": 1, "display": "color"}],
        },
        "output": [IMAGE],
    },
    "ImageScale": {
        "required": {
            "image": [IMAGE, {}],
            "upscale_method": [["nearest-exact", "bilinear", "area", "bicubic", "lanczos"], {}],
            "width": _SCALED, "height": _SCALED, "crop": [["disabled", "center"], {}],
        },
        "output": [IMAGE],
    },
    "ImageInvert": {"required": {"image": [IMAGE, {}]}, "output": [IMAGE]},
    "ImageBlur": {
        "required": {"image": [IMAGE, {}], "blur_radius": _number(INT, 1, 31), "sigma": _number(FLOAT, 0.1, 10.0)},
        "output": [IMAGE],
    },
    "ImageAddNoise": {
        "required": {"image": [IMAGE, {}], "seed": _number(INT, 0, 2**64 - 1), "strength": _number(FLOAT, 0.0, 1.0)},
        "output": [IMAGE],
    },
    "LoadImage": {"required": {"image": [[], {"image_upload": True}]}, "output": [IMAGE, "MASK"]},
    "EmptyAudio": {
        "required": {
            "duration": _number(FLOAT, 0.0, 2**64 - 1), "sample_rate": _number(INT, 1, 192_000),
            "channels": _number(INT, 1, 2),
        },
        "output": [AUDIO],
    },
    "CreateVideo": {
        "required": {"images": [IMAGE, {}], "fps": _number(FLOAT, 1.0, 120.0)},
        "optional": {"audio": [AUDIO, {}]},
        "output": [VIDEO],
    },
    "PrimitiveString": {"required": {"value": _TEXT}, "output": [STRING]},
    "StringConcatenate": {
        "required": {"string_a": _TEXT, "string_b": _TEXT, "delimiter": _prefix("")}, "output": [STRING],
    },
    "CallsheetTestSleep": {
        "required": {
            "image": [IMAGE, {}], "seconds": _number(FLOAT, 0.0, 3600.0), "steps": _number(INT, 1, 10_000),
            "nonce": _number(INT, 0, 2**53),
        },
        "output": [IMAGE],
    },
    "CallsheetTestFail": {
        "required": {"image": [IMAGE, {}], "message": _TEXT, "kind": [["runtime", "oom"], {}]}, "output": [IMAGE],
    },
    "PreviewAny": {"required": {"source": ["*", {}]}, "output": [STRING], "output_node": True},
    "PreviewImage": {"required": {"images": [IMAGE, {}]}, "output": [IMAGE], "output_node": True},
    "SaveImage": {
        "required": {"images": [IMAGE, {}], "filename_prefix": _prefix()}, "output": [IMAGE], "output_node": True,
    },
    "SaveImageWebsocket": {"required": {"images": [IMAGE, {}]}, "output": [], "output_node": True},
    "SaveAnimatedWEBP": {
        "required": {
            "images": [IMAGE, {}], "filename_prefix": _prefix(), "fps": _number(FLOAT, 0.01, 1000.0),
            "lossless": ["BOOLEAN", {"default": True}], "quality": _number(INT, 0, 100),
            "method": _combo("default", "fastest", "slowest"),
        },
        "output": [IMAGE], "output_node": True,
    },
    "SaveWEBM": {
        "required": {
            "images": [IMAGE, {}], "filename_prefix": _prefix(), "codec": _combo("vp9", "av1"),
            "fps": _number(FLOAT, 0.01, 1000.0), "crf": _number(FLOAT, 0.0, 63.0),
        },
        "output": [IMAGE], "output_node": True,
    },
    "SaveVideo": {
        "required": {
            "video": [VIDEO, {}], "filename_prefix": _prefix("video/ComfyUI"), "format": _combo("auto", "mp4"),
            "codec": _combo("auto", "h264"),
        },
        "output": [VIDEO], "output_node": True,
    },
    "SaveAudio": {
        "required": {"audio": [AUDIO, {}], "filename_prefix": _prefix("audio/ComfyUI")}, "output": [AUDIO],
        "output_node": True,
    },
    "SaveAudioMP3": {
        "required": {
            "audio": [AUDIO, {}], "filename_prefix": _prefix("audio/ComfyUI"), "quality": _combo("V0", "128k", "320k"),
        },
        "output": [AUDIO], "output_node": True,
    },
    # Nodes that no stock server has, with outputs as third-party nodes were observed to report them.
    "ThirdPartyVideo": {
        "required": {"images": [IMAGE, {}], "filename_prefix": _prefix()}, "output": [], "output_node": True,
    },
    "ThirdPartySound": {
        "required": {"audio": [AUDIO, {}], "filename_prefix": _prefix()}, "output": [], "output_node": True,
    },
}  # fmt: skip


def object_info(name: str) -> dict[str, Any]:
    node = NODES[name]
    inputs = {part: node[part] for part in ("required", "optional") if part in node}
    return {"input": inputs, "output": node["output"], "name": name, "output_node": node.get("output_node", False)}
