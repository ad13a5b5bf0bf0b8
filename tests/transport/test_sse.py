"""The parser of server-sent events."""

import pytest

from callsheet.transport.sse_parser import SseEvent, SseEventTooLargeError, SseParser


def test_a_stream_is_parsed_the_same_however_it_is_split_into_chunks() -> None:
    raw = (
        b': hello\r\nretry: 5\r\nid: 1\r\ndata: {"a":\r\ndata: 1}\r\n\r\nid: 2\nevent: progress\ndata: x\n\n'
        b"data: \xc3\xbc\r\rid: 4\n\n"
    )
    expected = [SseEvent("1", b'{"a":\n1}'), SseEvent("2", b"x", "progress"), SseEvent("2", "ü".encode())]
    for size in range(1, len(raw) + 1):
        parser = SseParser()
        events = [event for at in range(0, len(raw), size) for event in parser.feed(raw[at : at + size])]
        assert events == expected, size


@pytest.mark.parametrize("raw", [b"data: " + b"x" * 100, b"data: 0123456789\n" * 10], ids=["one line", "many lines"])
def test_an_event_above_the_size_limit_is_rejected(raw: bytes) -> None:
    with pytest.raises(SseEventTooLargeError, match="larger than 64 bytes"):
        list(SseParser(event_bytes_max=64).feed(raw))


def test_the_size_limit_applies_to_each_event_and_not_to_the_stream() -> None:
    assert len(list(SseParser(event_bytes_max=64).feed(b"data: 0123456789\n\n" * 10))) == 10
