"""Media types by the first bytes of a file: recognized types, similar bytes, and aliases of types."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.core.policy import magic_bytes
from callsheet.core.policy.magic_bytes import HEAD_BYTES, matches_type


def iso_media(main: bytes, *others: bytes) -> bytes:
    brands = b"".join(others)
    return struct.pack(">I", 16 + len(brands)) + b"ftyp" + main + bytes(4) + brands + b"\0\0\0\x08free"


def ebml(doc_type: bytes) -> bytes:
    inside = b"\x42\x86\x81\x01\x42\xf7\x81\x01\x42\x82" + bytes([0x80 | len(doc_type)]) + doc_type
    return b"\x1a\x45\xdf\xa3" + bytes([0x80 | len(inside)]) + inside + b"\x18\x53\x80\x67"


RECOGNIZED = {
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", magic_bytes.PNG),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF", magic_bytes.JPEG),
    "gif of 1987": (b"GIF87a\1\0\1\0", magic_bytes.GIF),
    "gif of 1989": (b"GIF89a\1\0\1\0", magic_bytes.GIF),
    "webp": (b"RIFF\x24\0\0\0WEBPVP8 ", magic_bytes.WEBP),
    "avif": (iso_media(b"avif", b"mif1", b"miaf"), magic_bytes.AVIF),
    "avif by another brand": (iso_media(b"mif1", b"avif"), magic_bytes.AVIF),
    "heic": (iso_media(b"heic", b"mif1"), magic_bytes.HEIC),
    "heic by a compatible brand": (iso_media(b"mif1", b"heic"), magic_bytes.HEIC),
    "heif of another codec": (iso_media(b"mif1", b"miaf"), magic_bytes.HEIF),
    "heif sequence": (iso_media(b"msf1"), magic_bytes.HEIF),
    "mp4": (iso_media(b"isom", b"iso2", b"avc1", b"mp41"), magic_bytes.MP4),
    "m4a": (iso_media(b"M4A ", b"isom"), magic_bytes.M4A),
    "quicktime": (iso_media(b"qt  "), magic_bytes.QUICKTIME),
    "old quicktime": (b"\0\0\0\x08wide\0\0\x10\0mdat", magic_bytes.QUICKTIME),
    "webm": (ebml(b"webm"), magic_bytes.WEBM),
    "matroska": (ebml(b"matroska"), magic_bytes.MATROSKA),
    "wav": (b"RIFF\x24\0\0\0WAVEfmt ", magic_bytes.WAV),
    "wav above 4 GiB": (b"RF64\xff\xff\xff\xffWAVEds64", magic_bytes.WAV),
    "mp3 with a tag": (b"ID3\4\0\0\0\0\0\0", magic_bytes.MP3),
    "mp3": (b"\xff\xfb\x90\x64\0\0", magic_bytes.MP3),
    "mp3 of MPEG 2": (b"\xff\xf3\x48\xc4\0\0", magic_bytes.MP3),
    "ogg": (b"OggS\0\2", magic_bytes.OGG),
    "flac": (b"fLaC\0\0\0\x22", magic_bytes.FLAC),
    "pdf": (b"%PDF-1.7\n", magic_bytes.PDF),
    "zip": (b"PK\3\4\x14\0", magic_bytes.ZIP),
    "empty zip": (b"PK\5\6" + bytes(18), magic_bytes.ZIP),
}
NOT_ENFORCED = {
    "bmp": (b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0", magic_bytes.BMP),
    "tiff, little-endian": (b"II*\0\x08\0\0\0", magic_bytes.TIFF),
    "tiff, big-endian": (b"MM\0*\0\0\0\x08", magic_bytes.TIFF),
    "exr": (b"v/1\x01\x02\0\0\0", magic_bytes.EXR),
    "avi": (b"RIFF\x24\0\0\0AVI LIST", magic_bytes.AVI),
    "glb": (b"glTF\x02\0\0\0", magic_bytes.GLB),
}
"""Recognized types that may be declared for any content: they have variants that are not recognized."""
UNRECOGNIZED = {
    "text that begins like a BMP": b"BM 42 is a postcode.", "text that begins like a GLB": b"glTF is a format.",
    "empty": b"", "one byte": b"\xff", "text": b"A lighthouse at dusk.", "json": b"[1]", "html": b"<!doctype html>",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'>", "a RIFF of another type": b"RIFF\x24\0\0\0CDDAfmt ",
    "text in UTF-16": b"\xff\xfea\0b\0c\0", "text in UTF-8 with a byte order mark": b"\xef\xbb\xbfabc",
    "aac": b"\xff\xf1\x50\x80\0\0",
    "an mp3 frame with an invalid bit rate": b"\xff\xfb\xf0\x64",
    "an mp3 frame with an invalid sampling rate": b"\xff\xfb\x9c\x64", "zeros": bytes(64),
    "ebml of another type": ebml(b"other"), "truncated ebml": b"\x1a\x45\xdf\xa3\x90\x42\x82",
    "a truncated png": b"\x89PNG",
}  # fmt: skip


@pytest.mark.parametrize(("head", "media_type"), RECOGNIZED.values(), ids=RECOGNIZED)
def test_a_type_is_recognized_by_the_first_bytes(head: bytes, media_type: str) -> None:
    assert magic_bytes.sniff(head) == media_type
    assert magic_bytes.sniff(head.ljust(HEAD_BYTES, b"\x55")) == media_type
    assert matches_type(media_type, head)
    assert matches_type(f"{media_type.upper()}; codecs=x", head)
    assert matches_type("application/octet-stream", head)
    assert not matches_type("text/plain", head)
    assert not matches_type("application/json", head)


@pytest.mark.parametrize(("head", "media_type"), NOT_ENFORCED.values(), ids=NOT_ENFORCED)
def test_a_recognized_type_that_is_not_enforced_can_be_declared_for_any_content(head: bytes, media_type: str) -> None:
    assert magic_bytes.sniff(head) == media_type
    assert matches_type(media_type, head)
    assert matches_type(media_type, b"a variant")
    assert not matches_type("text/plain", head)


@pytest.mark.parametrize("head", UNRECOGNIZED.values(), ids=UNRECOGNIZED)
def test_the_type_of_other_bytes_is_not_guessed(head: bytes) -> None:
    assert magic_bytes.sniff(head) is None
    assert matches_type("text/plain", head)
    assert matches_type("image/svg+xml", head)
    assert matches_type("application/octet-stream", head)


@pytest.mark.parametrize("head", UNRECOGNIZED.values(), ids=UNRECOGNIZED)
@pytest.mark.parametrize(
    "declared",
    [magic_bytes.PNG, magic_bytes.MP4, magic_bytes.WAV, magic_bytes.PDF, magic_bytes.ZIP, "audio/mp3", "image/jpg"],
)
def test_a_declared_type_with_magic_bytes_is_refused_without_them(head: bytes, declared: str) -> None:
    assert not matches_type(declared, head)


def test_only_types_of_the_same_family_match_each_other() -> None:
    """Every recognized content under every declared type."""
    heads = {media_type: head for head, media_type in RECOGNIZED.values()}
    family = {
        (magic_bytes.MP4, magic_bytes.QUICKTIME),
        (magic_bytes.QUICKTIME, magic_bytes.MP4),
        (magic_bytes.MATROSKA, magic_bytes.WEBM),
        (magic_bytes.HEIC, magic_bytes.HEIF),
        (magic_bytes.HEIF, magic_bytes.HEIC),
        (magic_bytes.HEIF, magic_bytes.AVIF),
        (magic_bytes.M4A, magic_bytes.MP4),
        (magic_bytes.M4A, magic_bytes.QUICKTIME),
        (magic_bytes.MP4, magic_bytes.M4A),
        (magic_bytes.QUICKTIME, magic_bytes.M4A),
    }
    for declared in heads:
        for actual, head in heads.items():
            expected = declared == actual or (declared, actual) in family
            assert matches_type(declared, head) is expected, (declared, actual)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("image/jpg", "jpeg"), ("audio/mp3", "mp3"), ("audio/x-wav", "wav"), ("audio/x-m4a", "m4a"),
        ("audio/mp4", "m4a"), ("video/ogg", "ogg"), ("audio/opus", "ogg"), ("image/heif", "heic"),
        ("audio/webm", "webm"), ("video/quicktime", "mp4"), ("application/x-zip-compressed", "zip"),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "zip"),
        ("model/gltf-binary", "png"),
    ],
)  # fmt: skip
def test_an_alias_of_a_type_matches_its_content(alias: str, name: str) -> None:
    assert matches_type(alias, RECOGNIZED[name][0])


@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_are_accepted_by_the_detection(head: bytes) -> None:
    media_type = magic_bytes.sniff(head)
    assert media_type is None or matches_type(media_type, head)
