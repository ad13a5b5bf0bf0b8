"""Commands about money: `wallet show`, `wallet topup`."""

from typing import Annotated

import typer

from callsheet.cli.output import as_json, group, say, table
from callsheet.cli.server import Server, command
from callsheet.core.counting import counted

User = Annotated[str, typer.Argument(metavar="USER", help="Whose wallet.")]
wallet = group("wallet", help="Look into a user's wallet, or fill it.")


def register(app: typer.Typer) -> None:
    """Add the commands about money."""
    app.add_typer(wallet)


def show(
    server: Server,
    user: User,
    lines: Annotated[int, typer.Option("--lines", min=0, help="How many lines of the ledger.")] = 10,
) -> None:
    """Show a user's balance, what is held, and the newest lines of the ledger."""
    with server.client() as client:
        found = client.wallet(user)
        entries = [entry for entry, _ in zip(client.ledger(user), range(lines), strict=False)] if lines else []
    if server.json:
        as_json({"wallet": found, "entries": entries})
        return
    say(f"{found.user} has {counted(found.balance, 'credit')}, and {found.held} held for jobs under way.")
    if entries:
        say("")
        table(
            ("NO", "KIND", "AMOUNT", "CONSUMED", "BALANCE", "JOB", "REASON"),
            ((e.seq, e.kind, e.amount, e.consumed, e.balance, e.job_id, e.reason) for e in entries),
            empty="",
            least=("CONSUMED", "REASON", "BALANCE"),
            text=("REASON",),
        )


def topup(
    server: Server,
    user: User,
    amount: Annotated[int, typer.Argument(min=1, help="Credits to add.")],
    reason: Annotated[str, typer.Option("--reason", help="What the ledger says.")] = "top-up",
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key adds once: the invoice's number.")
    ] = None,
) -> None:
    """Add credits to a user's wallet."""
    with server.client() as client:
        done = client.topup(user, amount, idempotency_key=idempotency_key, reason=reason)
    if server.json:
        as_json(done)
        return
    before = "; this key had added them before" if done.replay else ""
    say(f"{done.user} has {counted(done.balance, 'credit')}{before}.")


command(wallet)(show)
command(wallet)(topup)
