"""Content-Type and Content-Disposition of downloads: inline for safe media types, attachment otherwise."""

INLINE_MEDIA_TYPES = frozenset(
    {"image/png", "image/jpeg", "image/webp", "audio/wav", "audio/mpeg", "video/mp4", "video/webm"}
)
"""Media types that a browser may display."""
DEFAULT_MEDIA_TYPE = "application/octet-stream"
_FILENAME_CHARS_MAX = 128


def content_headers(name: str, media_type: str) -> tuple[str, str]:
    """Return the Content-Type and the Content-Disposition of a file."""
    safe_name = (
        "".join(c if c.isalnum() or c in "._-" else "_" for c in name if c.isascii())[:_FILENAME_CHARS_MAX] or "file"
    )
    disposition, media_type = (
        ("inline", media_type) if media_type in INLINE_MEDIA_TYPES else ("attachment", DEFAULT_MEDIA_TYPE)
    )
    return media_type, f'{disposition}; filename="{safe_name}"'
