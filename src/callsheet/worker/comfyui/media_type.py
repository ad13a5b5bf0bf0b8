"""Media type and file extension of a file that ComfyUI produced.

The content decides: ComfyUI lists MP4 files under `images`. The server's Content-Type and the file name are fallbacks.
"""

import mimetypes

from callsheet.core.policy.magic_bytes import FLAC, GLB, HEAD_BYTES, OGG, WAV, WEBM, WEBP, sniff

__all__ = ["HEAD_BYTES", "detect_media_type", "extension_for"]
_DEFAULT_TYPE = "application/octet-stream"
_EXTENSIONS = {FLAC: ".flac", WAV: ".wav", OGG: ".ogg", WEBP: ".webp", WEBM: ".webm", GLB: ".glb"}
"""Types that `mimetypes` does not know, or maps to another extension on some systems."""


def detect_media_type(head: bytes, content_type: str = "", name: str = "") -> str:
    """Return the media type by content, else by the server's Content-Type, else by the name.

    `head` is the first `HEAD_BYTES` bytes of the file.
    """
    sniffed = sniff(head)
    if sniffed:
        return sniffed
    declared = content_type.partition(";")[0].strip().lower()
    if declared and declared != _DEFAULT_TYPE and "/" in declared:
        return declared
    return mimetypes.guess_type(name)[0] or _DEFAULT_TYPE


def extension_for(media_type: str) -> str:
    """Return the file extension of a media type, with its dot; empty if it has none."""
    return _EXTENSIONS.get(media_type) or mimetypes.guess_extension(media_type) or ""
