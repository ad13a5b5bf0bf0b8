"""What the demonstration needs in a house: its workflows, and a user with credits to spend."""

from pathlib import Path

from callsheet.catalog import load
from callsheet.core.model import commands
from callsheet.engine import Engine

TENANT, USER, CREDITS = "default", "demo", 100
WORKFLOWS = Path(__file__).with_name("workflows")


def seed_demo(engine: Engine) -> None:
    """Put the workflows that are not there yet, and give the user some credits, once in a house's life."""
    demo_definitions = load(WORKFLOWS)
    existing = {
        row[0]
        for row in engine.reads.fetch("current_workflows", ids=[definition.name for definition in demo_definitions])
    }
    for definition in demo_definitions:
        if definition.name not in existing:
            engine.execute(commands.PutWorkflow(definition=definition, requested_by="callsheet"))
    engine.execute(
        commands.TopUp(
            tenant=TENANT,
            user=USER,
            amount=CREDITS,
            idempotency_key="demo-welcome",
            reason="for the demonstration",
            requested_by="callsheet",
        )
    )
