"""What a file is by its first bytes, and whether that is what somebody says it is.

Only types that begin with bytes of their own are told; texts, JSON and whatever else has none are believed, and are
handed out as downloads only.
"""

HEAD_BYTES = 512
"""So many bytes from the beginning are enough."""

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
"""How a QuickTime file begins that is older than its brand."""
_M4A_BRAND = b"M4A "
_EBML, _DOC_TYPE = b"\x1a\x45\xdf\xa3", b"\x42\x82"
_MP4_FAMILY = frozenset({MP4, QUICKTIME, M4A})
"""Two names of one container; cameras and browsers mix them up."""

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
"""What a file may begin like, by what it is said to be."""


def sniff(head: bytes) -> str | None:
    """Return the media type of a file by its first bytes; None if they do not tell."""
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
    """Say whether a file that begins so may be what it is said to be."""
    declared, found = media_type.partition(";")[0].strip().lower(), sniff(head)
    if declared in _ALLOWED_CONTENT:
        return found in _ALLOWED_CONTENT[declared]
    if declared.startswith("text/") or declared == "application/json":
        return found is None
    return True  # what we cannot tell may lie in a container that we can: documents in a zip, for one


def _by_brand(head: bytes) -> str:
    """Tell an ISO file by its brands: the main one, then those that it is compatible with."""
    if head[8:12] == _M4A_BRAND:  # only as the main brand: videos name it as a compatible one
        return M4A
    size = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[8:12], *(head[at : at + 4] for at in range(16, size - 3, 4))}
    return next((found for known_brands, found in _BRANDS if brands & known_brands), MP4)


def _by_doc_type(head: bytes) -> str | None:
    at = head.find(_DOC_TYPE)
    word = head[at + 3 : at + 3 + (head[at + 2] & 0x7F)] if 0 < at < len(head) - 2 else b""
    return {b"webm": WEBM, b"matroska": MATROSKA}.get(word.rstrip(b"\0"))


def _is_bmp(head: bytes) -> bool:
    """Check the reserved bytes of the header too: two letters alone may begin a text."""
    return head.startswith(b"BM") and head[6:10] == bytes(4)


def _is_mp3_frame(head: bytes) -> bool:
    """Say whether an MPEG frame of layer III begins here: a version, a bit rate and a sampling rate that exist."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # noqa: PLR2004 - bits of the frame's header
        return False
    version, rate, sampling = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and rate not in {0, 15} and sampling != 3  # noqa: PLR2004 - values that are reserved
