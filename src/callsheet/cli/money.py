"""Commands about money: what a user has, adding to it, correcting it, and what a job would cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.given import Input, input_of
from callsheet.cli.output import as_json, group, moment, say, table
from callsheet.cli.server import Server, command
from callsheet.core.counting import counted

if TYPE_CHECKING:
    from callsheet.client import Balance

User = Annotated[str, typer.Argument(metavar="USER", help="Whose wallet.")]
Once = Annotated[str | None, typer.Option("--idempotency-key", help="The same key moves once: the invoice's number.")]
_NUMBERS = {"ignore_unknown_options": True}
"""A number below 0 is a number, and no option."""
wallet = group("wallet", help="Look into a user's wallet, fill it, correct it.")


def register(app: typer.Typer) -> None:
    """Add the commands about money."""
    app.add_typer(wallet)
    command(app)(quote)


def show(
    server: Server,
    user: User,
    lines: Annotated[int, typer.Option("--lines", min=0, help="How many lines of the ledger.")] = 10,
) -> None:
    """Show a user's balance, what is held, the newest ledger lines."""
    with server.client() as client:
        found = client.wallet(user)
        entries = list(client.ledger(user, limit=lines)) if lines else []
    if server.json:
        as_json({"wallet": found, "entries": entries})
        return
    say(f"{found.user} has {counted(found.balance, 'credit')}, and {found.held} held for jobs under way.")
    if entries:
        say("")
        table(
            ("NO", "AT", "KIND", "AMOUNT", "CONSUMED", "BALANCE", "JOB", "REASON"),
            ((e.seq, moment(e.at), e.kind, e.amount, e.consumed, e.balance, e.job_id, e.reason) for e in entries),
            empty="",
            least=("CONSUMED", "REASON", "AT", "BALANCE"),
            text=("REASON",),
        )


def topup(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(min=1, help="Credits to add.")],
    reason: Annotated[str, typer.Option("--reason", help="What the ledger says.")] = "top-up",
    idempotency_key: Once = None,
) -> None:
    """Add credits to a user's wallet."""
    with server.client() as client:
        _moved(server, client.topup(user, amount, idempotency_key=idempotency_key, reason=reason))


def adjust(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(help="Credits to add; below 0, to take away.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    idempotency_key: Once = None,
) -> None:
    """Correct a user's balance by hand, up or down."""
    with server.client() as client:
        _moved(server, client.adjust(user, amount, reason=reason, idempotency_key=idempotency_key))


def quote(
    server: Server,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.")],
    *,
    user: Annotated[str, typer.Option("--user", help="Who would ask for it and pay.")],
    input: Input = None,
) -> None:
    """Say what a job would cost, and fix that price for a while."""
    with server.client() as client:
        made = client.quote(workflow, user=user, input=input_of(input or []))
    if server.json:
        as_json(made)
        return
    enough = "enough" if made.affordable else "not enough"
    say(f"{made.workflow} costs {counted(made.price, 'credit')}; {user} has {made.balance}, which is {enough}.")
    say(f"The quote holds until {moment(made.expires_at)}:")
    say(made.quote)


def _moved(server: Server, done: "Balance") -> None:
    if server.json:
        as_json(done)
        return
    before = "; this key had moved them before" if done.replay else ""
    say(f"{done.user} has {counted(done.balance, 'credit')}{before}.")


command(wallet)(show)
command(wallet, context_settings=_NUMBERS)(topup)
command(wallet, context_settings=_NUMBERS)(adjust)
