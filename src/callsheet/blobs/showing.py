"""How a file is handed to a browser: shown if it can do no harm, saved otherwise."""

SHOWN = frozenset({"image/png", "image/jpeg", "image/webp", "audio/wav", "audio/mpeg", "video/mp4", "video/webm"})
"""What a browser may show; anything else is handed over as a download."""
PLAIN = "application/octet-stream"
_CHARS_MAX = 128


def shown_as(name: str, media_type: str) -> tuple[str, str]:
    """Return the Content-Type and the Content-Disposition of a file."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name if c.isascii())[:_CHARS_MAX] or "file"
    how, media_type = ("inline", media_type) if media_type in SHOWN else ("attachment", PLAIN)
    return media_type, f'{how}; filename="{safe}"'
