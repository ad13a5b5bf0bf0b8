"""What is shown once. It stays out of a repr, and so out of logs and of whatever prints its variables."""

from typing import Any

from msgspec import Struct

from callsheet.client.models import Key

_SECRETS = frozenset({"secret", "token"})


class SecretStruct(Struct, frozen=True):
    """Holds a secret."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, "…" if name in _SECRETS else getattr(self, name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class NewKey(SecretStruct, frozen=True):
    """A new key; its secret is shown this once."""

    key: Key
    secret: str


class Token(SecretStruct, frozen=True):
    """A user's token: it reads that user's jobs, files and wallet, and nothing else."""

    token: str
    user: str
    expires_in_seconds: int


class WorkerToken(SecretStruct, frozen=True):
    """A worker's new token, shown once."""

    worker: str
    token: str
