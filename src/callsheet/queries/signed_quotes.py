"""Quotes: signed prices for one user and one input that expire. A job submitted with a quote costs that price."""

import hashlib
import time
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from callsheet.api.quotes import Quote, QuoteBody
from callsheet.comfyui.graph_rules_implementation import COMFYUI_GRAPH_RULES
from callsheet.core.decisions.money import wallet_id
from callsheet.core.decisions.submit import check_enabled, dedup_key_of
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Submit
from callsheet.core.model.errors import BadInput, NotFound
from callsheet.core.model.rows import Workflow
from callsheet.core.model.workflow_definition import WorkflowDefinition, parse_definition
from callsheet.core.policy.input_schema.validator import InputSchema, compile_input_schema
from callsheet.core.policy.request_validation import check_user, validate_input
from callsheet.core.policy.storable_text import check_storable
from callsheet.core.policy.visibility import Viewer
from callsheet.queries import render
from callsheet.queries.context import QueryContext

_encode = msgspec.json.Encoder(order="deterministic").encode


class QuoteClaims(Struct, frozen=True, array_like=True):
    """Content of a signed quote."""

    tenant: str
    user: str
    workflow: str
    digest: bytes
    price: int
    expires_at: int


async def create_quote(context: QueryContext, viewer: Viewer, body: QuoteBody) -> Quote:
    """Return the price of a job, signed, for one user and one input."""
    check_storable(Submit(tenant=viewer.tenant, user=body.user, workflow=body.workflow))
    found, wallet = await context.reads.lookup_many([
        ("current_workflows", {"ids": [body.workflow]}), ("wallet_of", {"id": wallet_id(viewer.tenant, body.user)}),
    ])  # fmt: skip
    if not found:
        raise NotFound("workflow", body.workflow[:80])
    limits = context.limits
    definition, schema = _compile(Workflow(*found[0]).spec)
    check_user(body.user, limits)
    check_enabled(definition)
    validate_input(definition, schema, body.input, limits, COMFYUI_GRAPH_RULES)
    price = definition.price
    expires_at = int(time.time()) + context.settings.quote_expires_in_seconds
    token = context.signer.sign(
        "quote", QuoteClaims(viewer.tenant, body.user, body.workflow, _digest(body.input), price, expires_at)
    )
    balance = wallet[0][3] if wallet else 0
    return Quote(body.workflow, price, balance, balance >= price, render.to_datetime(expires_at * SECOND), token)


@lru_cache(maxsize=256)
def _compile(spec: str) -> tuple[WorkflowDefinition, InputSchema | None]:
    definition = parse_definition(spec)
    return definition, compile_input_schema(definition.name, definition.input_schema)


async def quoted_price(context: QueryContext, command: Submit, quote: str) -> int:
    """Return the price that a quote fixed for this request."""
    payload = context.signer.read("quote", quote, QuoteClaims)
    if payload is None or (payload.tenant, payload.user, payload.workflow, payload.digest) != (
        command.tenant, command.user, command.workflow, _digest(command.input)
    ):  # fmt: skip
        raise BadInput(
            "invalid_quote", "This quote was created for another user, workflow or input. Create a new quote."
        )
    if payload.expires_at < time.time() and not await _was_accepted(context, command):
        raise BadInput("quote_expired", "This quote has expired. Create a new quote.")
    return payload.price


async def _was_accepted(context: QueryContext, command: Submit) -> bool:
    """Return whether a request with the same idempotency key was accepted before: it then gets the same response."""
    dedup_key = dedup_key_of(command)
    return (
        dedup_key is not None
        and dedup_key.isprintable()
        and bool(await context.reads.lookup("jobs_by_dedup_key", ids=[dedup_key]))
    )


def _digest(value: Any) -> bytes:
    return hashlib.sha256(_encode(value)).digest()
