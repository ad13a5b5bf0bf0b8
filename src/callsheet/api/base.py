"""What several resources share: pagination and structs that hold secrets."""

from typing import Any

from msgspec import Struct

NUMBER_MAX = 2**63 - 1
"""The largest integer that the databases store."""
LAST_ID = "~"
"""Sorts after every id."""


class NamesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go on, in a list by names or ids."""

    after: str = ""
    limit: int = 100


_SECRETS = frozenset({"secret", "token"})


class SecretStruct(Struct, frozen=True):
    """Base of structs that hold a secret. The secret does not appear in the repr, so it stays out of logs."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, "…" if name in _SECRETS else getattr(self, name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"
