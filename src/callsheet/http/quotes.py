"""Quotes: a price, signed, for one user and one input, until a moment. A submit that brings it pays that price."""

import hashlib
import time
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from callsheet.core.clock import SECOND
from callsheet.core.commands import Submit
from callsheet.core.money import wallet_id
from callsheet.core.recipe import Recipe, parse, validator
from callsheet.core.rows import Workflow
from callsheet.core.submit import check_enabled, check_user, checked_input, idem_of
from callsheet.core.texts import check_texts
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.codes import INPUT
from callsheet.http.house import House
from callsheet.http.problem import Problem, absent
from callsheet.http.request import Request
from callsheet.http.route import WRITERS, Answer, Route

_encode = msgspec.json.Encoder(order="deterministic").encode


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
    expires_at: str | None
    quote: str


class Promise(Struct, frozen=True, array_like=True):
    """What a quote's text says."""

    tenant: str
    user: str
    workflow: str
    digest: bytes
    price: int
    until: int


async def make_quote(house: House, request: Request) -> Answer:
    body: QuoteBody = request.content
    who: Who = request.who
    check_texts(Submit(tenant=who.tenant, user=body.user, workflow=body.workflow))
    found, wallet = await house.reads.fetch_all([
        ("current_workflows", {"ids": [body.workflow]}), ("wallet_of", {"id": wallet_id(who.tenant, body.user)}),
    ])  # fmt: skip
    if not found:
        raise absent("workflow")
    recipe, schema = _compiled(Workflow(*found[0]).spec)
    limits = house.engine.settings.limits
    check_user(body.user, limits)
    check_enabled(recipe)
    checked_input(recipe, schema, body.input, limits)
    price = recipe.price
    until = int(time.time()) + house.settings.quote_seconds
    token = house.signed.sign("quote", Promise(who.tenant, body.user, body.workflow, _digest(body.input), price, until))
    balance = wallet[0][3] if wallet else 0
    return Answer(Quote(body.workflow, price, balance, balance >= price, views.moment(until * SECOND), token))


@lru_cache(maxsize=256)
def _compiled(spec: str) -> tuple[Recipe, Any]:
    recipe = parse(spec)
    return recipe, validator(recipe)


async def quoted_price(house: House, command: Submit, quote: str) -> int:
    """Return the price that a quote fixed for this very request."""
    fact = house.signed.read("quote", quote, Promise)
    if fact is None or (fact.tenant, fact.user, fact.workflow, fact.digest) != (
        command.tenant, command.user, command.workflow, _digest(command.input)
    ):  # fmt: skip
        raise Problem(422, "invalid_quote", "This quote is not for this request: ask for a new one.")
    if fact.until < time.time() and not await _made_before(house, command):
        raise Problem(422, "quote_expired", "This quote has expired: ask for a new one.")
    return fact.price


async def _made_before(house: House, command: Submit) -> bool:
    """Say whether this is a repetition of a request that was accepted in time: it gets the same answer."""
    idem = idem_of(command)
    return idem is not None and idem.isprintable() and bool(await house.reads.fetch("jobs_by_idem", ids=[idem]))


def _digest(given: Any) -> bytes:
    return hashlib.sha256(_encode(given)).digest()


ROUTES = (
    Route("POST", "/v1/quotes", make_quote, WRITERS, "Quote: price a job before submitting it", Quote, QuoteBody,
          problems=("404 workflow_not_found", "409 workflow_disabled", "422 invalid_user", "422 invalid_input", *INPUT),
          details="What a submit would refuse for its user, its workflow or its input has no price. Whether its files "
          "are there, whether a gate lets it pass and whether it can be paid is known when it is submitted."),
)  # fmt: skip
