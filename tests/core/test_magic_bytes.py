"""What a file is by its first bytes: real beginnings, their look-alikes, and what people call them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.core.policy import magic_bytes
from callsheet.core.policy.magic_bytes import HEAD_BYTES, matches_type


def iso(main: bytes, *others: bytes) -> bytes:
    brands = b"".join(others)
    return struct.pack(">I", 16 + len(brands)) + b"ftyp" + main + bytes(4) + brands + b"\0\0\0\x08free"


def ebml(doc_type: bytes) -> bytes:
    inside = b"\x42\x86\x81\x01\x42\xf7\x81\x01\x42\x82" + bytes([0x80 | len(doc_type)]) + doc_type
    return b"\x1a\x45\xdf\xa3" + bytes([0x80 | len(inside)]) + inside + b"\x18\x53\x80\x67"


BEGINNINGS = {
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", magic_bytes.PNG),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF", magic_bytes.JPEG),
    "gif of 1987": (b"GIF87a\1\0\1\0", magic_bytes.GIF),
    "gif of 1989": (b"GIF89a\1\0\1\0", magic_bytes.GIF),
    "webp": (b"RIFF\x24\0\0\0WEBPVP8 ", magic_bytes.WEBP),
    "avif": (iso(b"avif", b"mif1", b"miaf"), magic_bytes.AVIF),
    "avif by another brand": (iso(b"mif1", b"avif"), magic_bytes.AVIF),
    "heic": (iso(b"heic", b"mif1"), magic_bytes.HEIC),
    "heic by a compatible brand": (iso(b"mif1", b"heic"), magic_bytes.HEIC),
    "heif of another codec": (iso(b"mif1", b"miaf"), magic_bytes.HEIF),
    "heif sequence": (iso(b"msf1"), magic_bytes.HEIF),
    "mp4": (iso(b"isom", b"iso2", b"avc1", b"mp41"), magic_bytes.MP4),
    "mp4 of sound": (iso(b"M4A ", b"isom"), magic_bytes.M4A),
    "quicktime": (iso(b"qt  "), magic_bytes.QUICKTIME),
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
NOTHING = {
    "text that begins like a BMP": b"BM 42 is a postcode.", "text that begins like a GLB": b"glTF is a format.",
    "nothing": b"", "one byte": b"\xff", "text": b"A lighthouse at dusk.", "json": b"[1]", "html": b"<!doctype html>",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'>", "a RIFF of another type": b"RIFF\x24\0\0\0CDDAfmt ",
    "text in UTF-16": b"\xff\xfea\0b\0c\0", "text in UTF-8 with a mark": b"\xef\xbb\xbfabc",
    "aac": b"\xff\xf1\x50\x80\0\0",
    "a frame of no rate": b"\xff\xfb\xf0\x64", "a frame of no sampling": b"\xff\xfb\x9c\x64", "zeros": bytes(64),
    "ebml of another kind": ebml(b"other"), "ebml cut": b"\x1a\x45\xdf\xa3\x90\x42\x82", "half a png": b"\x89PNG",
}  # fmt: skip


@pytest.mark.parametrize(("head", "found"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_file_is_told_by_its_first_bytes(head: bytes, found: str) -> None:
    assert magic_bytes.sniff(head) == found
    assert magic_bytes.sniff(head.ljust(HEAD_BYTES, b"\x55")) == found
    assert matches_type(found, head)
    assert matches_type(f"{found.upper()}; codecs=x", head)
    assert matches_type("application/octet-stream", head)
    assert not matches_type("text/plain", head)
    assert not matches_type("application/json", head)


@pytest.mark.parametrize(("head", "found"), NOT_ENFORCED.values(), ids=NOT_ENFORCED)
def test_types_that_are_recognized_but_not_enforced(head: bytes, found: str) -> None:
    assert magic_bytes.sniff(head) == found
    assert matches_type(found, head)
    assert matches_type(found, b"a variant")
    assert not matches_type("text/plain", head)


@pytest.mark.parametrize("head", NOTHING.values(), ids=NOTHING)
def test_what_has_no_beginning_of_its_own_is_not_guessed(head: bytes) -> None:
    assert magic_bytes.sniff(head) is None
    assert matches_type("text/plain", head)
    assert matches_type("image/svg+xml", head)
    assert matches_type("application/octet-stream", head)


@pytest.mark.parametrize("head", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize(
    "said",
    [magic_bytes.PNG, magic_bytes.MP4, magic_bytes.WAV, magic_bytes.PDF, magic_bytes.ZIP, "audio/mp3", "image/jpg"],
)
def test_a_type_that_can_be_told_is_not_believed_without_its_bytes(head: bytes, said: str) -> None:
    assert not matches_type(said, head)


def test_only_a_type_of_the_same_family_is_taken_for_another() -> None:
    """Plants every beginning under every type: what agrees is written down, all else is refused."""
    told = {found: head for head, found in BEGINNINGS.values()}
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
    for said in told:
        for found, head in told.items():
            assert matches_type(said, head) is (said == found or (said, found) in family), (said, found)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("image/jpg", "jpeg"), ("audio/mp3", "mp3"), ("audio/x-wav", "wav"), ("audio/x-m4a", "mp4 of sound"),
        ("audio/mp4", "mp4 of sound"), ("video/ogg", "ogg"), ("audio/opus", "ogg"), ("image/heif", "heic"),
        ("audio/webm", "webm"), ("video/quicktime", "mp4"), ("application/x-zip-compressed", "zip"),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "zip"),
        ("model/gltf-binary", "png"),
    ],
)  # fmt: skip
def test_the_other_names_of_a_type_are_known(said: str, name: str) -> None:
    assert matches_type(said, BEGINNINGS[name][0])


@given(st.binary(max_size=HEAD_BYTES))
def test_no_bytes_make_it_stumble(head: bytes) -> None:
    found = magic_bytes.sniff(head)
    assert found is None or matches_type(found, head)
