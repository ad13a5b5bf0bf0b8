"""Detection of media types by the first bytes of a file, and comparison with the declared type.

Only types with a signature are recognized. Others, such as text and JSON, are accepted as declared and are only served
as downloads.
"""

HEAD_BYTES = 512
"""Number of leading bytes that detection needs."""

PNG, JPEG, GIF, WEBP, AVIF = "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"
HEIC, HEIF = "image/heic", "image/heif"
BMP, TIFF, EXR = "image/bmp", "image/tiff", "image/x-exr"
AVI, GLB, M4A = "video/x-msvideo", "model/gltf-binary", "audio/mp4"
MP4, QUICKTIME, WEBM, MATROSKA = "video/mp4", "video/quicktime", "video/webm", "video/x-matroska"
WAV, MP3, OGG, FLAC = "audio/wav", "audio/mpeg", "audio/ogg", "audio/flac"
PDF, ZIP = "application/pdf", "application/zip"

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", PNG), (b"\xff\xd8\xff", JPEG), (b"GIF87a", GIF), (b"GIF89a", GIF), (b"OggS", OGG),
    (b"fLaC", FLAC), (b"ID3", MP3), (b"%PDF-", PDF), (b"PK\x03\x04", ZIP), (b"PK\x05\x06", ZIP),
    (b"II*\x00", TIFF), (b"MM\x00*", TIFF), (b"v/1\x01", EXR), (b"glTF\x01\0\0\0", GLB), (b"glTF\x02\0\0\0", GLB),
)  # fmt: skip
_RIFF_FORMATS = {b"WEBP": WEBP, b"WAVE": WAV, b"AVI ": AVI}
_BRANDS: tuple[tuple[frozenset[bytes], str], ...] = (
    (frozenset({b"avif", b"avis"}), AVIF),
    (frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}), HEIC),
    (frozenset({b"mif1", b"msf1"}), HEIF),
    (frozenset({b"qt  "}), QUICKTIME),
)
_QUICKTIME_ATOMS = frozenset({b"moov", b"mdat", b"wide", b"pnot"})
"""Box types at the start of QuickTime files that have no `ftyp` box."""
_M4A_BRAND = b"M4A "
_EBML, _DOC_TYPE = b"\x1a\x45\xdf\xa3", b"\x42\x82"
_MP4_FAMILY = frozenset({MP4, QUICKTIME, M4A})
"""Types that share one container format; cameras and browsers confuse them."""

_ALLOWED_CONTENT: dict[str, frozenset[str]] = {
    **{one: frozenset({one}) for one in (PNG, JPEG, GIF, WEBP, AVIF, WEBM, WAV, MP3, OGG, FLAC, PDF, ZIP)},
    **dict.fromkeys((MP4, QUICKTIME, M4A, "audio/m4a", "audio/x-m4a", "video/x-m4v"), _MP4_FAMILY),
    **dict.fromkeys((MATROSKA, "audio/x-matroska"), frozenset({MATROSKA, WEBM})),
    **dict.fromkeys(("audio/x-wav", "audio/wave", "audio/vnd.wave"), frozenset({WAV})),
    **dict.fromkeys(("video/ogg", "application/ogg", "audio/opus"), frozenset({OGG})),
    "image/jpg": frozenset({JPEG}), HEIC: frozenset({HEIC, HEIF}), HEIF: frozenset({HEIC, HEIF, AVIF}),
    "audio/mp3": frozenset({MP3}), "audio/webm": frozenset({WEBM}), "audio/x-flac": frozenset({FLAC}),
    "application/x-zip-compressed": frozenset({ZIP}),
}  # fmt: skip
"""Detected types that are accepted, by declared type."""


def sniff(head: bytes) -> str | None:
    """Return the media type of a file by its first bytes; None if it is not recognized."""
    for start, found in _SIGNATURES:
        if head.startswith(start):
            return found
    if head[:4] in {b"RIFF", b"RF64"}:
        return _RIFF_FORMATS.get(head[8:12])
    if _is_bmp(head):
        return BMP
    if head[4:8] == b"ftyp":
        return _by_brand(head)
    if head[4:8] in _QUICKTIME_ATOMS:
        return QUICKTIME
    if head.startswith(_EBML):
        return _by_doc_type(head)
    return MP3 if _is_mp3_frame(head) else None


def matches_type(media_type: str, head: bytes) -> bool:
    """Return whether the first bytes of a file are compatible with its declared type."""
    declared, found = media_type.partition(";")[0].strip().lower(), sniff(head)
    if declared in _ALLOWED_CONTENT:
        return found in _ALLOWED_CONTENT[declared]
    if declared.startswith("text/") or declared == "application/json":
        return found is None
    return True  # an unknown declared type may use a known container, for example documents in a zip


def _by_brand(head: bytes) -> str:
    """Return the type of an ISO media file by its major brand, then by its compatible brands."""
    if head[8:12] == _M4A_BRAND:  # only as the major brand: videos list it as a compatible one
        return M4A
    size = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[8:12], *(head[at : at + 4] for at in range(16, size - 3, 4))}
    return next((found for known_brands, found in _BRANDS if brands & known_brands), MP4)


def _by_doc_type(head: bytes) -> str | None:
    at = head.find(_DOC_TYPE)
    word = head[at + 3 : at + 3 + (head[at + 2] & 0x7F)] if 0 < at < len(head) - 2 else b""
    return {b"webm": WEBM, b"matroska": MATROSKA}.get(word.rstrip(b"\0"))


def _is_bmp(head: bytes) -> bool:
    """Check the reserved header bytes too: a text may also start with the same two letters."""
    return head.startswith(b"BM") and head[6:10] == bytes(4)


def _is_mp3_frame(head: bytes) -> bool:
    """Return whether an MPEG layer III frame starts here: valid version, bit rate and sampling rate."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # noqa: PLR2004 - bits of the frame's header
        return False
    version, rate, sampling = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and rate not in {0, 15} and sampling != 3  # noqa: PLR2004 - values that are reserved
