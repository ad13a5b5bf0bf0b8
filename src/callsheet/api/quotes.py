"""Quotes: a signed price for one input."""

from datetime import datetime
from typing import Any

from msgspec import Struct


class QuoteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What would be submitted."""

    workflow: str
    user: str
    input: Any = None


class Quote(Struct, frozen=True):
    """A price, and the token that fixes it."""

    workflow: str
    price: int
    balance: int
    affordable: bool
    expires_at: datetime
    quote: str
