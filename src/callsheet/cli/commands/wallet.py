"""Commands about money: what a user has, adding to it, correcting it, and what a job would cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.arguments import Input, parse_input
from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, create_group, format_time, print_line, table
from callsheet.core.model.plural import pluralize

if TYPE_CHECKING:
    from callsheet.client import Balance

User = Annotated[str, typer.Argument(metavar="USER", help="Whose wallet.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", help="The same key changes the wallet once. Keys are unique per user of a tenant."
    ),
]
_ALLOW_NEGATIVE = {"ignore_unknown_options": True}
"""A number below 0 is a number, and no option."""
wallet = create_group("wallet", help="Show, top up and adjust a wallet.")


def register(app: typer.Typer) -> None:
    """Add the commands about money."""
    app.add_typer(wallet)
    command(app)(quote)


def show(
    server: Server,
    user: User,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many lines of the ledger.")] = 10,
) -> None:
    """Show a user's balance, what is reserved, the newest ledger lines."""
    with server.client() as client:
        found = client.wallets.get(user)
        entries = list(client.wallets.entries(user, limit=limit)) if limit else []
    if server.json:
        as_json({"wallet": found, "entries": entries})
        return
    print_line(
        f"{found.user} has {pluralize(found.balance, 'credit')}, and {found.reserved} reserved for jobs under way."
    )
    if entries:
        print_line("")
        table(
            ("NO", "AT", "KIND", "AMOUNT", "CONSUMED", "BALANCE", "JOB", "REASON"),
            ((e.seq, format_time(e.at), e.kind, e.amount, e.consumed, e.balance, e.job_id, e.reason) for e in entries),
            empty="",
            least=("CONSUMED", "REASON", "AT", "BALANCE"),
            text=("REASON",),
        )


def topup(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(min=1, help="Credits to add.")],
    reason: Annotated[str, typer.Option("--reason", help="What the ledger says.")] = "top-up",
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Add credits to a user's wallet."""
    with server.client() as client:
        _print_balance(server, client.wallets.top_up(user, amount, idempotency_key=idempotency_key, reason=reason))


def adjust(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(help="Credits to add; below 0, to take away.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Correct a user's balance by hand, up or down."""
    with server.client() as client:
        _print_balance(server, client.wallets.adjust(user, amount, reason=reason, idempotency_key=idempotency_key))


def quote(
    server: Server,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.")],
    *,
    user: Annotated[str, typer.Option("--user", help="Who would ask for it and pay.")],
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
    print_line(f"The quote holds until {format_time(result.expires_at)}:")
    print_line(result.quote)


def _print_balance(server: Server, done: "Balance") -> None:
    if server.json:
        as_json(done)
        return
    replay_note = "; this key had moved them before" if done.replay else ""
    print_line(f"{done.user} has {pluralize(done.balance, 'credit')}{replay_note}.")


command(wallet)(show)
command(wallet, context_settings=_ALLOW_NEGATIVE)(topup)
command(wallet, context_settings=_ALLOW_NEGATIVE)(adjust)
