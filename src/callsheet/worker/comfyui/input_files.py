"""`InputFiles`: uploads the input files of a graph, each content once per server."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from callsheet.core.model.comfyui_graph import FileSlot
from callsheet.transport.sha256 import digest_file
from callsheet.worker.comfyui.adapters.base import ComfyBackend, ComfyRejectedError
from callsheet.worker.comfyui.asset_cache import AssetCache
from callsheet.worker.comfyui.media_type import HEAD_BYTES, detect_media_type, extension_for


class InputFiles:
    """The input files of one task on one server."""

    def __init__(
        self, comfy: ComfyBackend, assets: AssetCache, download: Callable[[str], Path], slots: Sequence[FileSlot]
    ) -> None:  # fmt: skip
        self._comfy = comfy
        self._assets = assets
        self._download = download
        self._slots = slots
        self._digests: dict[str, str] = {}
        """The digest of the input file of each node."""

    def ensure_uploaded(self) -> list[tuple[str, str, Any]]:
        """Upload files that the server may not have; return (node, field, value) for the graph."""
        return [(slot.node, slot.field, self._ensure_uploaded(slot)) for slot in self._slots]

    def _ensure_uploaded(self, slot: FileSlot) -> Any:
        """Return the value for one slot. The file is downloaded only if the server may not have it."""
        sha256 = slot.sha256
        asset = self._assets.get(self._comfy.endpoint, sha256) if sha256 else None
        if sha256 is None or asset is None:
            path = self._download(slot.file_id)
            sha256 = digest_file(path)
            asset = self._assets.get(self._comfy.endpoint, sha256)
            if asset is None:
                asset = self._comfy.upload(_upload_name(sha256, path), path)
                self._assets.put(self._comfy.endpoint, sha256, asset)
        self._digests[slot.node] = sha256
        return asset

    def invalidate(self) -> None:
        """Assume that the server has none of the files."""
        self._assets.invalidate(self._comfy.endpoint, self._digests.values())

    def invalidate_missing(self, error: ComfyRejectedError) -> bool:
        """Assume that the server lost the files of the rejected nodes; return whether there are any."""
        everything = error.code == "missing_asset"
        lost = [sha256 for node, sha256 in self._digests.items() if everything or node in error.nodes]
        self._assets.invalidate(self._comfy.endpoint, lost)
        return bool(lost)


def _upload_name(sha256: str, path: Path) -> str:
    """Return a file name derived from the content, so that the server stores each content once."""
    with path.open("rb") as file:
        suffix = extension_for(detect_media_type(file.read(HEAD_BYTES), name=path.name)) or path.suffix
    return f"callsheet-{sha256[:32]}{suffix}"
