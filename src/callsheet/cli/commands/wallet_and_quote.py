"""`callsheet wallet` and `callsheet quote`: show, top up and adjust a wallet, and price a job."""

from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, create_group, format_time, print_line, table
from callsheet.cli.value_parsers import Input, parse_input
from callsheet.core.model.plural import pluralize

if TYPE_CHECKING:
    from callsheet.client import Balance

User = Annotated[str, typer.Argument(metavar="USER", help="User whose wallet it is.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", help="The same key changes the wallet once. Keys are unique per user of a tenant."
    ),
]
_ALLOW_NEGATIVE = {"ignore_unknown_options": True}
"""Lets a negative amount be an argument, not an option."""
wallet = create_group("wallet", help="Show, top up and adjust a wallet.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(wallet)
    command(app)(quote)


def show(
    server: Server,
    user: User,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of ledger entries.")] = 10,
) -> None:
    """Show a user's balance, reserved credits and newest ledger entries."""
    with server.client() as client:
        balance = client.wallets.get(user)
        entries = list(client.wallets.entries(user, limit=limit)) if limit else []
    if server.json:
        as_json({"wallet": balance, "entries": entries})
        return
    print_line(
        f"{balance.user} has {pluralize(balance.balance, 'credit')}, and {balance.reserved} reserved for active jobs."
    )
    if entries:
        print_line("")
        table(
            ("NO", "AT", "KIND", "AMOUNT", "CONSUMED", "BALANCE", "JOB", "REASON"),
            ((e.seq, format_time(e.at), e.kind, e.amount, e.consumed, e.balance, e.job_id, e.reason) for e in entries),
            empty="",
            droppable=("CONSUMED", "REASON", "AT", "BALANCE"),
            wrappable=("REASON",),
        )


def topup(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(min=1, help="Credits to add.")],
    reason: Annotated[str, typer.Option("--reason", help="Reason shown in the ledger.")] = "top-up",
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Add credits to a user's wallet."""
    with server.client() as client:
        _print_balance(server, client.wallets.top_up(user, amount, idempotency_key=idempotency_key, reason=reason))


def adjust(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(help="Credits to add, or to remove if negative.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Reason to record.")],
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Adjust a user's balance, up or down."""
    with server.client() as client:
        _print_balance(server, client.wallets.adjust(user, amount, reason=reason, idempotency_key=idempotency_key))


def quote(
    server: Server,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.")],
    *,
    user: Annotated[str, typer.Option("--user", help="User who would pay.")],
    input: Input = None,
) -> None:
    """Quote the price of a job."""
    with server.client() as client:
        result = client.quotes.create(workflow, user=user, input=parse_input(input or []))
    if server.json:
        as_json(result)
        return
    enough = "enough" if result.affordable else "not enough"
    print_line(
        f"{result.workflow} costs {pluralize(result.price, 'credit')}; {user} has {result.balance}, which is {enough}."
    )
    print_line(f"The quote is valid until {format_time(result.expires_at)}:")
    print_line(result.quote)


def _print_balance(server: Server, result: "Balance") -> None:
    if server.json:
        as_json(result)
        return
    replay_note = "; this idempotency key was used before" if result.replay else ""
    print_line(f"{result.user} has {pluralize(result.balance, 'credit')}{replay_note}.")


command(wallet)(show)
command(wallet, context_settings=_ALLOW_NEGATIVE)(topup)
command(wallet, context_settings=_ALLOW_NEGATIVE)(adjust)
