"""Callsheet: the durable job backend for products that sell AI-made media."""

from typing import TYPE_CHECKING, Any

__all__ = ["AsyncClient", "CallsheetError", "Client"]

if TYPE_CHECKING:
    from callsheet.client import AsyncClient, CallsheetError, Client
else:

    def __getattr__(name: str) -> Any:
        """Bring the client in when it is asked for: a server does without it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from callsheet import client  # noqa: PLC0415 - when it is asked for

        return getattr(client, name)
