"""Data that the demo needs on a server: its workflows, and a user with credits."""

from pathlib import Path

from callsheet.catalog import load
from callsheet.core.model import commands
from callsheet.engine import Engine

TENANT, USER, CREDITS = "default", "demo", 100
WORKFLOWS = Path(__file__).with_name("workflows")


def seed_demo(engine: Engine) -> None:
    """Create the demo workflows that do not exist yet, and top up the demo user once."""
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
            reason="demo credits",
            requested_by="callsheet",
        )
    )
