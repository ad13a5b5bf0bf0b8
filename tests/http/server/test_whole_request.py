"""Bytes that are refused without a parser: only those about whose end there is no doubt."""

import pytest

from callsheet.http.listener.whole_request import WholeRequest, find_whole_request

LINE = b"POST /v1/jobs?x=1 HTTP/1.1\r\n"
FOUND = WholeRequest("POST", b"/v1/jobs?x=1", keep_alive=True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (LINE + b"Host: a\r\nContent-Length: 2\r\n\r\n{}", FOUND),
        (LINE + b"Host: a\r\ncontent-length:2\r\nConnection: keep-alive\r\n\r\n{}", FOUND),
        (LINE + b"Host: a\r\n\r\n", FOUND),
        (LINE + b"\r\n", FOUND),
        (LINE + b"Connection: Close\r\n\r\n", FOUND._replace(keep_alive=False)),
    ],
)
def test_a_whole_request_is_found(data: bytes, expected: WholeRequest) -> None:
    assert find_whole_request(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        LINE,
        LINE + b"Host: a\r\n",
        LINE + b"Content-Length: 3\r\n\r\n{}",
        LINE + b"Content-Length: 1\r\n\r\n{}",
        LINE + b"Host: a\r\n\r\n{}",
        LINE + b"Host: a\r\n\r\n" + LINE + b"\r\n",
        LINE + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        LINE + b"Content-Length: 2\r\nX: Content-Length: 2\r\n\r\n{}",
        LINE + b"Content-Length : 2\r\n\r\n{}",
        LINE + b"Content-Length: +2\r\n\r\n{}",
        LINE + b"Content-Length: 2, 2\r\n\r\n{}",
        LINE + b"X: y\nContent-Length: 2\r\n\r\n{}",
        LINE + b"X: y\nContent-Length: 2\r\n\r\n",
        LINE + b"Content-Length:\r\n 2\r\n\r\n{}",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        LINE + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        LINE + b"Upgrade: h2c\r\n\r\n",
        LINE + b"Origin: https://app.example\r\n\r\n",
        LINE + b"X-Request-Id: 1\r\n\r\n",
        LINE + b"X: \0\r\n\r\n",
        b"POST http://a/v1/jobs HTTP/1.1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.0\r\n\r\n",
        b"POST  /v1/jobs HTTP/1.1\r\n\r\n",
        b"post /v1/jobs HTTP/1.1\r\n\r\n",
        b"\r\nPOST /v1/jobs HTTP/1.1\r\n\r\n",
    ],
)
def test_any_other_bytes_are_left_to_the_parser(data: bytes) -> None:
    assert find_whole_request(data) is None
