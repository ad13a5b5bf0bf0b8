"""Wallets: balance, ledger, top-up, adjustment."""

from typing import Annotated

from msgspec import Meta, Struct

from callsheet.core import commands, rows
from callsheet.core.money import wallet_id
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.codes import VALUES
from callsheet.http.house import House
from callsheet.http.jobs import job_row
from callsheet.http.paging import NUMBER_MAX, limited, listed, paged
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import ADMINS, USER, WATCHERS, Answer, Route


class LedgerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines; newest first."""

    before: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = NUMBER_MAX
    """Lines with a smaller number; without it the newest."""
    limit: int = 50


class Ledger(Struct, frozen=True):
    """Lines of a wallet's ledger, newest first."""

    entries: list[views.Entry]
    next: int | None


class TopUpBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Bought credits; the same key moves them once."""

    amount: int
    idempotency_key: str = ""
    reason: str = "top-up"


class AdjustBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A correction by hand, up or down, and why."""

    amount: int
    reason: str
    idempotency_key: str = ""


class RefundBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and of which run; by default the last."""

    reason: str
    run: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None


class Balance(Struct, frozen=True):
    """The wallet after the movement."""

    user: str
    balance: int
    held: int
    replay: bool


async def get_wallet(house: House, request: Request) -> Answer:
    who, user = _whose(request)
    found = await house.reads.fetch("wallet_of", id=wallet_id(who.tenant, user))
    wallet = rows.Wallet(*found[0]) if found else rows.Wallet("", who.tenant, user, 0, 0, 0, 0, 0)
    return Answer(views.wallet_view(wallet))


async def get_ledger(house: House, request: Request) -> Answer:
    who, user = _whose(request)
    query = listed(house, request, LedgerQuery)
    count = limited(house, query.limit)
    found = await house.reads.fetch("ledger_back", id=wallet_id(who.tenant, user), before=query.before, count=count)
    page, more = paged(found, query.limit)
    entries = [views.entry_view(rows.Entry(*row)) for row in page]
    return Answer(Ledger(entries, entries[-1].seq if more else None))


async def top_up(house: House, request: Request) -> Answer:
    body: TopUpBody = request.content
    return await _posted(house, request, commands.TopUp, body)


async def adjust(house: House, request: Request) -> Answer:
    body: AdjustBody = request.content
    return await _posted(house, request, commands.Adjust, body)


async def refund_job(house: House, request: Request) -> Answer:
    body: RefundBody = request.content
    who: Who = request.who
    job = await job_row(house, request)
    done: commands.Balance = await house.engine.aexecute(
        commands.Refund(tenant=who.tenant, job_id=job.id, reason=body.reason, run=body.run, actor="admin", by=who.id)
    )
    return Answer(Balance(job.user_id, done.balance, done.held, done.replay))


async def _posted(
    house: House, request: Request, command: type[commands.TopUp | commands.Adjust], body: TopUpBody | AdjustBody
) -> Answer:
    who, user = _whose(request)
    done: commands.Balance = await house.engine.aexecute(
        command(
            tenant=who.tenant, user=user, amount=body.amount, reason=body.reason,
            idempotency_key=request.idempotency_key(body.idempotency_key) or "", actor="admin", by=who.id,
        )
    )  # fmt: skip
    return Answer(Balance(user, done.balance, done.held, done.replay))


def _whose(request: Request) -> tuple[Who, str]:
    who: Who = request.who
    user = request.params["user"]
    if who.role == USER and who.user != user:
        raise Problem(403, "forbidden", "This token is another user's.")
    return who, user


_MOVED = (
    "400 invalid_idempotency_key", "404 tenant_not_found", "409 balance_too_large", "422 idempotency_key_reused",
    "422 two_idempotency_keys", "422 invalid_user",
    "422 invalid_tenant", *VALUES,
)  # fmt: skip
ROUTES = (
    Route("GET", "/v1/wallets/{user}", get_wallet, WATCHERS, "Get a user's balance", views.Wallet),
    Route("GET", "/v1/wallets/{user}/ledger", get_ledger, WATCHERS, "List a user's ledger, newest first", Ledger,
          query=LedgerQuery),
    Route("POST", "/v1/wallets/{user}/topup", top_up, ADMINS, "Top up a wallet", Balance, TopUpBody,
          problems=_MOVED, reads=("Idempotency-Key",)),
    Route("POST", "/v1/wallets/{user}/adjust", adjust, ADMINS, "Adjust a balance", Balance, AdjustBody,
          problems=(*_MOVED, "402 insufficient_credits", "422 reason_required"), reads=("Idempotency-Key",)),
    Route("POST", "/v1/jobs/{job_id}/refund", refund_job, ADMINS, "Refund what a job has consumed", Balance,
          RefundBody, problems=("404 job_not_found", "404 run_not_found", "409 run_open", "409 nothing_to_refund",
                                "409 balance_too_large", "422 reason_required", *VALUES),
          details="Once per run, and all of it: a repetition moves nothing, and what went back by itself when the run "
                  "ended does not go back again."),
)  # fmt: skip
