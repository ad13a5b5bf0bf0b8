"""Digests are the same for bytes, files and streams, whatever the size of the content."""

import hashlib
import io

import pytest

from callsheet.transport.sha256 import digest_file, digest_stream, measure_content

MEBIBYTE = 1024 * 1024


class ShortReads(io.BytesIO):
    """A stream that returns fewer bytes than requested, as a socket does."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 1000))


@pytest.mark.parametrize("size", [0, 1, MEBIBYTE - 1, MEBIBYTE, 2 * MEBIBYTE + 1])
def test_bytes_files_and_streams_have_the_same_digest(size, tmp_path):
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    expected = hashlib.sha256(content).hexdigest()
    path = tmp_path / "content"
    path.write_bytes(content)
    assert measure_content(content) == measure_content(path) == (size, expected)
    assert digest_file(path) == digest_stream(io.BytesIO(content)) == digest_stream(ShortReads(content)) == expected


def test_a_stream_is_read_from_its_position():
    stream = io.BytesIO(b"head, body")
    stream.seek(6)
    assert digest_stream(stream) == hashlib.sha256(b"body").hexdigest()
