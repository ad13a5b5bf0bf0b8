"""Quotes: a signed price for one user and one input."""

from typing import Annotated, Any

from msgspec import Struct

from callsheet.api.shared_fields import Example, Time, doc


class QuoteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The job to price."""

    workflow: Annotated[str, doc("Name of the workflow.", "sketch")]
    user: Annotated[str, doc("Your id for the user who would pay.", "ann")]
    input: Annotated[Any, doc("Input that you would submit.", Example.INPUT)] = None


class Quote(Struct, frozen=True):
    """The price of a job. A job that you submit with `quote` before `expires_at` costs this price."""

    workflow: Annotated[str, doc("Name of the workflow.", "sketch")]
    price: Annotated[int, doc("Price in credits.", 3)]
    balance: Annotated[int, doc("Credits that the user can spend now.", 97)]
    affordable: Annotated[bool, doc("Whether the balance covers the price now.", True)]
    expires_at: Annotated[Time, doc("Time at which the quote expires.", "2026-03-14T09:41:53.000Z")]
    quote: Annotated[str, doc("Signed price: pass it as `quote` when you submit the same job.", Example.CURSOR)]
