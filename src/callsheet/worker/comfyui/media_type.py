"""What a file is, by its content. ComfyUI lists an MP4 under `images`; only the bytes tell."""

import mimetypes

HEAD_BYTES = 64
_DEFAULT_TYPE = "application/octet-stream"
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"v/1\x01", "image/x-exr"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"glTF", "model/gltf-binary"),
    (b"PK\x03\x04", "application/zip"),
    (b"%PDF-", "application/pdf"),
)
_RIFF_FORMATS = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_MP4_BRANDS = {
    b"avif": "image/avif", b"avis": "image/avif", b"heic": "image/heic", b"mif1": "image/heif", b"M4A ": "audio/mp4",
    b"qt  ": "video/quicktime",
}  # fmt: skip
_EXTENSIONS = {
    "audio/flac": ".flac", "audio/wav": ".wav", "audio/ogg": ".ogg", "image/webp": ".webp", "video/webm": ".webm",
    "model/gltf-binary": ".glb",
}  # fmt: skip


def media_type(head: bytes, content_type: str = "", name: str = "") -> str:
    """Return what the first bytes say; else what the server says, else what the name says."""
    sniffed = _sniff(head)
    if sniffed:
        return sniffed
    declared = content_type.partition(";")[0].strip().lower()
    if declared and declared != _DEFAULT_TYPE and "/" in declared:
        return declared
    return mimetypes.guess_type(name)[0] or _DEFAULT_TYPE


def _sniff(head: bytes) -> str:
    if head[:4] == b"RIFF":
        return _RIFF_FORMATS.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return _MP4_BRANDS.get(head[8:12], "video/mp4")
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "video/webm" if b"webm" in head else "video/x-matroska"
    return next((kind for start, kind in _SIGNATURES if head.startswith(start)), "")


def extension(kind: str) -> str:
    """Return the ending for a name of this type, with its dot; nothing if there is none."""
    return _EXTENSIONS.get(kind) or mimetypes.guess_extension(kind) or ""
