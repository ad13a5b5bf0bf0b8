"""Building blocks of the wire schema: field descriptions, times, pagination, and structs that hold secrets."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

NUMBER_MAX = 2**63 - 1
"""The largest integer that the databases store."""
LAST_ID = "~"
"""Sorts after every id."""

Time = Annotated[datetime, Meta(tz=True)]
"""A point in time in UTC, sent as RFC 3339."""


class Example:
    """Values that examples share."""

    JOB_ID = "01968c2e-7f4a-7c31-9d52-6b1f0a4e8c77"
    STAGE_ID = "01968c2e-7f4a-7c31-8a10-2f6e9b3d5c01"
    TASK_ID = "01968c2e-7f4a-7c31-b3c8-51d7e0a9f246"
    FILE_ID = "01968c2e-7f4a-7c31-a7e4-0c93d8b1562f"
    KEY_ID = "01968c2e-5d10-7b02-8f6a-9e2d4c7b1a35"
    AT = "2026-03-14T09:26:53.589Z"
    LATER = "2026-03-14T09:27:31.204Z"
    CURSOR = "bXkgcGxhY2UgaW4gdGhlIGxpc3Q"
    DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    """SHA-256 of the four bytes `test`, which the upload sample sends."""
    INPUT: dict[str, Any] = {"prompt": "a lighthouse at dusk"}  # noqa: RUF012 - read only


def doc(description: str, *examples: Any, **schema: Any) -> Meta:
    """Describe a field, with an example and further JSON Schema keywords. Without an example its type gives one."""
    return Meta(description=description, examples=list(examples) or None, extra_json_schema=schema or None)


class NamesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pagination of a list that is sorted by name or id."""

    cursor: Annotated[str, doc("`next` of the previous page.", "sketch")] = ""
    limit: Annotated[int, doc("Maximum number of items to return.", 50)] = 100


_SECRETS = frozenset({"secret", "token"})


class SecretStruct(Struct, frozen=True):
    """Base of structs that hold a secret. The secret does not appear in the repr, so it stays out of logs."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, "…" if name in _SECRETS else getattr(self, name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"
