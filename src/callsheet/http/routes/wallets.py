"""Routes for wallets: balance, ledger, top-ups, adjustments and refunds."""

from callsheet.api.wallets import AdjustBody, Balance, Ledger, LedgerQuery, RefundBody, TopUpBody, Wallet
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.request import Request
from callsheet.http.server.route import ADMINS, READERS_AND_USERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import wallets
from callsheet.queries.jobs import find_job


async def get_wallet(state: AppState, request: Request) -> Response:
    return Response(await wallets.get_wallet(state.queries, request.caller, request.params["user"]))


async def get_ledger(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, LedgerQuery)
    return Response(await wallets.list_ledger(state.queries, request.caller, request.params["user"], query))


async def top_up(state: AppState, request: Request) -> Response:
    body: TopUpBody = request.content
    return await _post_entry(state, request, commands.TopUp, body)


async def adjust_balance(state: AppState, request: Request) -> Response:
    body: AdjustBody = request.content
    return await _post_entry(state, request, commands.Adjust, body)


async def refund_job(state: AppState, request: Request) -> Response:
    body: RefundBody = request.content
    caller: Caller = request.caller
    job = await find_job(state.queries, caller, request.params["job_id"])
    result: commands.Balance = await state.engine.aexecute(
        commands.Refund(
            tenant=caller.tenant, job_id=job.id, reason=body.reason, run=body.run, actor="admin", requested_by=caller.id
        )
    )
    return Response(Balance(job.user_id, result.balance, result.reserved, result.replay))


async def _post_entry(
    state: AppState, request: Request, command: type[commands.TopUp | commands.Adjust], body: TopUpBody | AdjustBody
) -> Response:
    caller: Caller = request.caller
    user = request.params["user"]
    result: commands.Balance = await state.engine.aexecute(
        command(
            tenant=caller.tenant, user=user, amount=body.amount, reason=body.reason,
            idempotency_key=request.idempotency_key(body.idempotency_key) or "", actor="admin", requested_by=caller.id,
        )
    )  # fmt: skip
    return Response(Balance(user, result.balance, result.reserved, result.replay))


_ENTRY_PROBLEMS = (
    "400 invalid_idempotency_key", "404 tenant_not_found", "409 balance_too_large", "422 idempotency_key_reused",
    "422 idempotency_key_conflict", "422 invalid_user",
    "422 invalid_tenant", *VALUES,
)  # fmt: skip
ROUTES = (
    Route("GET", "/v1/wallets/{user}", get_wallet, READERS_AND_USERS, "Get a wallet", Wallet,
          details="Returns the balance and the reserved credits. A user without a wallet has a balance of 0."),
    Route("GET", "/v1/wallets/{user}/ledger", get_ledger, READERS_AND_USERS, "List ledger entries", Ledger,
          query=LedgerQuery, details="Newest first."),
    Route("POST", "/v1/wallets/{user}/topup", top_up, ADMINS, "Top up a wallet", Balance, TopUpBody,
          problems=_ENTRY_PROBLEMS, request_headers=("Idempotency-Key",),
          details="Adds credits to a user's wallet. Use the id of the payment as idempotency key, so that a repeated "
          "request adds the credits once. Keys are unique per user of a tenant: the same key for another user adds "
          "credits there, too."),
    Route("POST", "/v1/wallets/{user}/adjust", adjust_balance, ADMINS, "Adjust a wallet", Balance, AdjustBody,
          problems=(*_ENTRY_PROBLEMS, "402 insufficient_credits", "422 reason_required"),
          request_headers=("Idempotency-Key",),
          details="Adds credits, or deducts them with a negative `amount`. Keys are unique per user of a tenant: the "
          "same key changes a user's balance once."),
    Route("POST", "/v1/jobs/{job_id}/refund", refund_job, ADMINS, "Refund a job", Balance,
          RefundBody, problems=("404 job_not_found", "404 run_not_found", "409 run_not_ended", "409 nothing_to_refund",
                                "409 balance_too_large", "422 reason_required", *VALUES),
          details="Refunds all credits that a run consumed, once per run. Repeating the request has no effect. "
          "Credits that were refunded when the run ended are not refunded again."),
)  # fmt: skip
