"""Information about ComfyUI nodes: a table of stock nodes, and the `/object_info` of a server.

An input of a node is a socket, which takes a link to another node, or a widget, which takes a value. ComfyUI 0.33
accepts a value for a socket and fails only when it runs the graph, so this module detects it before.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

ObjectInfo = dict[str, Any]
"""The answer of `/object_info`: inputs and outputs of each node class."""
_WIDGETS = frozenset({"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"})
_FILE_FIELDS = frozenset({"image", "mask", "audio", "video", "file", "latent", "model_file"})
_LINK_PARTS = 2

_SAMPLER = "model positive negative latent_image"
_SOCKETS: dict[str, str] = {
    "BasicGuider": "model conditioning",
    "BasicScheduler": "model",
    "CFGGuider": "model positive negative",
    "CLIPSetLastLayer": "clip",
    "CLIPTextEncode": "clip",
    "CLIPTextEncodeFlux": "clip",
    "CLIPTextEncodeSDXL": "clip",
    "ConditioningCombine": "conditioning_1 conditioning_2",
    "ConditioningZeroOut": "conditioning",
    "ControlNetApply": "conditioning control_net image",
    "ControlNetApplyAdvanced": "positive negative control_net image",
    "CreateVideo": "images audio",
    "FluxGuidance": "conditioning",
    "GetVideoComponents": "video",
    "ImageAddNoise": "image",
    "ImageBlur": "image",
    "ImageInvert": "image",
    "ImageScale": "image",
    "ImageScaleBy": "image",
    "ImageSharpen": "image",
    "ImageUpscaleWithModel": "upscale_model image",
    "KSampler": _SAMPLER,
    "KSamplerAdvanced": _SAMPLER,
    "LatentUpscale": "samples",
    "LatentUpscaleBy": "samples",
    "LoraLoader": "model clip",
    "LoraLoaderModelOnly": "model",
    "ModelSamplingFlux": "model",
    "ModelSamplingSD3": "model",
    "PreviewAudio": "audio",
    "PreviewImage": "images",
    "SamplerCustom": f"{_SAMPLER} sampler sigmas",
    "SamplerCustomAdvanced": "noise guider sampler sigmas latent_image",
    "SaveAnimatedPNG": "images",
    "SaveAnimatedWEBP": "images",
    "SaveAudio": "audio",
    "SaveAudioMP3": "audio",
    "SaveAudioOpus": "audio",
    "SaveImage": "images",
    "SaveImageWebsocket": "images",
    "SaveVideo": "video",
    "SaveWEBM": "images",
    "VAEDecode": "samples vae",
    "VAEDecodeTiled": "samples vae",
    "VAEEncode": "pixels vae",
    "VAEEncodeForInpaint": "pixels vae mask",
}
"""Sockets of stock nodes. Other nodes are only checked with a server's `/object_info`."""


def is_link(value: Any) -> bool:
    """Return whether a value is a link in ComfyUI's format: a node's id and the number of its output."""
    return (
        isinstance(value, list)
        and len(value) == _LINK_PARTS
        and isinstance(value[0], str)
        and isinstance(value[1], int | float)
    )


def is_socket(class_type: str, field: str) -> bool:
    """Return whether a field of a stock node takes only links."""
    return field in _SOCKETS.get(class_type, "").split()


def takes_file(class_type: str, field: str) -> bool:
    """Return whether a field names a file on the ComfyUI machine. A job must not set it: it could read other files."""
    return "Load" in class_type and field in _FILE_FIELDS


def sends_over_websocket(class_type: str) -> bool:
    """Return whether a node sends its images over the WebSocket and saves none on the server."""
    return class_type == "SaveImageWebsocket"


def combo_choices(declared: Any) -> list[Any] | None:
    """Return the options of a choice input, in either encoding, or None for other inputs.

    `[["a", "b"], {…}]` is the old one, `["COMBO", {"options": ["a", "b"]}]` the new. If the choice decides which other
    inputs exist, an option is `{"key": "a", "inputs": …}`.
    """
    if not isinstance(declared, list) or not declared:
        return None
    if isinstance(declared[0], list):
        return declared[0]
    options = _options(declared)
    if not (isinstance(declared[0], str) and "COMBO" in declared[0]):
        return None
    offered = options.get("options")
    if not isinstance(offered, list):
        return []
    return [option["key"] if isinstance(option, dict) and "key" in option else option for option in offered]


class NodeField(NamedTuple):
    """The server's description of one input of a node class."""

    type: str
    choices: list[Any] | None
    minimum: float | None
    maximum: float | None
    required: bool

    @property
    def takes_link_only(self) -> bool:
        return self.choices is None and self.type not in _WIDGETS and self.type.isupper()


def fields_of(info: ObjectInfo, class_type: str) -> dict[str, NodeField]:
    """Return the inputs of a node class; empty if the server does not have it."""
    declared = _as_dict(_as_dict(info.get(class_type)).get("input"))
    fields = {}
    for group in ("required", "optional"):
        for name, entry in _as_dict(declared.get(group)).items():
            options = _options(entry)
            kind = entry[0] if isinstance(entry, list) and entry and isinstance(entry[0], str) else "COMBO"
            kind = "LINK" if options.get("forceInput") else kind
            fields[name] = NodeField(
                kind,
                combo_choices(entry),
                _as_number(options.get("min")),
                _as_number(options.get("max")),
                group == "required",
            )
    return fields


def is_output_node(info: ObjectInfo, class_type: str) -> bool:
    """Return whether the server marks a node class as an output node."""
    return _as_dict(info.get(class_type)).get("output_node") is True


class Mismatch(NamedTuple):
    """A value that the ComfyUI server would reject or fail on."""

    node: str
    field: str
    what: str


def find_mismatches(graph: dict[str, Any], info: ObjectInfo) -> Iterator[Mismatch]:
    """Yield where a graph in API format does not match the server's nodes."""
    for node, body in graph.items():
        class_type = body["class_type"]
        if class_type not in info:
            yield Mismatch(node, "", f"The server has no node {class_type!r}.")
            continue
        for name, field in fields_of(info, class_type).items():
            if name in body["inputs"]:
                what = _describe_mismatch(class_type, name, body["inputs"][name], field)
            else:
                what = "It is missing." if field.required else ""
            if what:
                yield Mismatch(node, name, what)


def _describe_mismatch(class_type: str, name: str, value: Any, field: NodeField) -> str:
    if is_link(value):
        return ""
    if field.takes_link_only:
        return "It is a value, but must be a link to another node."
    if field.choices is not None and not takes_file(class_type, name) and value not in field.choices:
        return f"{str(value)[:80]!r} is not among the server's choices."
    if isinstance(value, int | float):
        if field.minimum is not None and value < field.minimum:
            return f"{value} is below {field.minimum}."
        if field.maximum is not None and value > field.maximum:
            return f"{value} is above {field.maximum}."
    return ""


def _options(declared: Any) -> dict[str, Any]:
    return _as_dict(declared[1]) if isinstance(declared, list) and len(declared) > 1 else {}


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
