"""Wallets: balance, ledger, top-up, adjustment."""

from callsheet.api.wallets import AdjustBody, Balance, Ledger, LedgerQuery, RefundBody, TopUpBody, Wallet
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model import commands, rows
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.routes.jobs import job_row
from callsheet.http.server.pagination import parse_list_query, row_count, split_page
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import ADMINS, READERS_AND_USERS, USER, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render


async def get_wallet(state: AppState, request: Request) -> Response:
    caller, user = _wallet_owner(request)
    found = await state.reads.lookup("wallet_of", id=wallet_id(caller.tenant, user))
    wallet = rows.Wallet(*found[0]) if found else rows.Wallet("", caller.tenant, user, 0, 0, 0, 0, 0)
    return Response(render.wallet_view(wallet))


async def get_ledger(state: AppState, request: Request) -> Response:
    caller, user = _wallet_owner(request)
    query = parse_list_query(state, request, LedgerQuery)
    count = row_count(state, query.limit)
    found = await state.reads.lookup(
        "ledger_before", id=wallet_id(caller.tenant, user), before=query.before, count=count
    )
    page, more = split_page(found, query.limit)
    entries = [render.entry_view(rows.LedgerEntry(*row)) for row in page]
    return Response(Ledger(entries, entries[-1].seq if more else None))


async def top_up(state: AppState, request: Request) -> Response:
    body: TopUpBody = request.content
    return await _post_entry(state, request, commands.TopUp, body)


async def adjust_balance(state: AppState, request: Request) -> Response:
    body: AdjustBody = request.content
    return await _post_entry(state, request, commands.Adjust, body)


async def refund_job(state: AppState, request: Request) -> Response:
    body: RefundBody = request.content
    caller: Caller = request.caller
    job = await job_row(state, request)
    done: commands.Balance = await state.engine.aexecute(
        commands.Refund(
            tenant=caller.tenant, job_id=job.id, reason=body.reason, run=body.run, actor="admin", by=caller.id
        )
    )
    return Response(Balance(job.user_id, done.balance, done.reserved, done.replay))


async def _post_entry(
    state: AppState, request: Request, command: type[commands.TopUp | commands.Adjust], body: TopUpBody | AdjustBody
) -> Response:
    caller, user = _wallet_owner(request)
    done: commands.Balance = await state.engine.aexecute(
        command(
            tenant=caller.tenant, user=user, amount=body.amount, reason=body.reason,
            idempotency_key=request.idempotency_key(body.idempotency_key) or "", actor="admin", by=caller.id,
        )
    )  # fmt: skip
    return Response(Balance(user, done.balance, done.reserved, done.replay))


def _wallet_owner(request: Request) -> tuple[Caller, str]:
    caller: Caller = request.caller
    user = request.params["user"]
    if caller.role == USER and caller.user != user:
        raise Problem(403, "forbidden", "This token is another user's.")
    return caller, user


_MOVED = (
    "400 invalid_idempotency_key", "404 tenant_not_found", "409 balance_too_large", "422 idempotency_key_reused",
    "422 idempotency_key_conflict", "422 invalid_user",
    "422 invalid_tenant", *VALUES,
)  # fmt: skip
ROUTES = (
    Route("GET", "/v1/wallets/{user}", get_wallet, READERS_AND_USERS, "Get a user's balance", Wallet),
    Route("GET", "/v1/wallets/{user}/ledger", get_ledger, READERS_AND_USERS, "List a user's ledger, newest first",
        Ledger,
          query=LedgerQuery),
    Route("POST", "/v1/wallets/{user}/topup", top_up, ADMINS, "Top up a wallet", Balance, TopUpBody,
          problems=_MOVED, request_headers=("Idempotency-Key",)),
    Route("POST", "/v1/wallets/{user}/adjust", adjust_balance, ADMINS, "Adjust a balance", Balance, AdjustBody,
          problems=(*_MOVED, "402 insufficient_credits", "422 reason_required"), request_headers=("Idempotency-Key",)),
    Route("POST", "/v1/jobs/{job_id}/refund", refund_job, ADMINS, "Refund what a job has consumed", Balance,
          RefundBody, problems=("404 job_not_found", "404 run_not_found", "409 run_not_ended", "409 nothing_to_refund",
                                "409 balance_too_large", "422 reason_required", *VALUES),
          details="Once per run, and all of it: a repetition moves nothing, and what went back by itself when the run "
                  "ended does not go back again."),
)  # fmt: skip
