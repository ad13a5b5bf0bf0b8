"""What the demonstration needs in a house: its workflows, and a user with credits to spend."""

from pathlib import Path

from callsheet.catalog import load
from callsheet.core import commands
from callsheet.engine import Engine

TENANT, USER, CREDITS = "default", "demo", 100
WORKFLOWS = Path(__file__).with_name("workflows")


def furnish(engine: Engine) -> None:
    """Put the workflows that are not there yet, and give the user some credits, once in a house's life."""
    wanted = load(WORKFLOWS)
    there = {row[0] for row in engine.read.fetch("current_workflows", ids=[recipe.name for recipe in wanted])}
    for recipe in wanted:
        if recipe.name not in there:
            engine.execute(commands.PutWorkflow(recipe=recipe, by="callsheet"))
    engine.execute(
        commands.TopUp(
            tenant=TENANT,
            user=USER,
            amount=CREDITS,
            idempotency_key="demo-welcome",
            reason="for the demonstration",
            by="callsheet",
        )
    )
