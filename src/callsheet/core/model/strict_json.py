"""JSON whose objects repeat no key. Parsers differ in which value they keep: a proxy may have checked the other one."""

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_ESCAPED_COLONS = (b"\\u003a", b"\\u003A")
_KEY_CHARS_MAX = 80
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class DuplicateKeyError(msgspec.DecodeError):
    """An object repeats a key."""

    def __init__(self, key: str) -> None:
        shown = key if len(key) <= _KEY_CHARS_MAX else f"{key[:_KEY_CHARS_MAX]}…"
        super().__init__(f"The key {shown!r} is repeated in one object")


def decode_json(document: bytes | str, expected_type: type[T]) -> T:
    """Decode JSON into a type. Raises a `MsgspecError` if it is invalid or repeats a key."""
    try:
        raw = document.encode() if isinstance(document, str) else document
    except UnicodeEncodeError:  # command-line arguments may have bytes that are not UTF-8
        raise msgspec.DecodeError("the text is not UTF-8") from None
    value = msgspec.json.decode(raw, type=expected_type)
    refuse_duplicate_keys(raw)
    return value


def refuse_duplicate_keys(raw: bytes) -> None:
    """Raise for valid JSON that repeats a key in an object, at any depth.

    A repeated key and its colon are lost when JSON is decoded and encoded again. So unless an escaped colon is added at
    the same time, the number of colons shows it, in a third of the time that a look at every key takes.
    """
    has_escaped_colon = any(escape in raw for escape in _ESCAPED_COLONS)
    if has_escaped_colon or _encode(_decode(raw)).count(b":") != raw.count(b":"):
        json.loads(raw, object_pairs_hook=_refuse_duplicates)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise DuplicateKeyError(key)
        seen.add(key)
