"""`callsheet workflows`: check workflow files, apply them to a server, list and show them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import FAILED, AsJson, Failure, as_json, create_group, print_line, table
from callsheet.core.model.plural import pluralize

if TYPE_CHECKING:
    from callsheet.core.model.workflow_definition import WorkflowDefinition

workflows = create_group("workflows", help="Check workflow files, and apply, list and show workflows.")


def register(app: typer.Typer) -> None:
    """Add the commands about workflows."""
    app.add_typer(workflows)


def apply(
    server: Server,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="TOML files, or folders with them.")],
) -> None:
    """Apply workflow files to a server: all, or none.

    Nothing is applied if a file is invalid. An unchanged workflow keeps its version.
    """
    import msgspec  # noqa: PLC0415 - only this command needs it

    definitions = load_definitions(paths)
    with server.client() as client:
        applied = [client.workflows.put(definition.name, msgspec.to_builtins(definition)) for definition in definitions]
    if server.json:
        as_json({"workflows": applied})
        return
    for workflow in applied:
        print_line(f"{workflow.name} is version {workflow.version}, for {pluralize(workflow.price, 'credit')}.")


def load_definitions(paths: Sequence[Path]) -> list["WorkflowDefinition"]:
    """Read workflow files. A failure has one line per finding."""
    from callsheet import catalog  # noqa: PLC0415 - slow: imports the schema library

    try:
        return catalog.load(*paths)
    except catalog.CatalogError as error:
        raise Failure(str(error), code="invalid_workflow") from None


def list_workflows(server: Server) -> None:
    """List the workflows of a server."""
    with server.client() as client:
        listed = list(client.workflows.list())
    if server.json:
        as_json({"workflows": listed})
        return
    table(
        ("WORKFLOW", "VERSION", "PRICE", "STAGES", "ENABLED"),
        ((w.name, w.version, w.price, ", ".join(w.stages), "yes" if w.enabled else "no") for w in listed),
        empty="There are no workflows.",
        droppable=("VERSION",),
        wrappable=("STAGES",),
    )


def show_workflow(
    server: Server, workflow_id: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Name of the workflow.")]
) -> None:
    """Show a workflow: its price, stages and input."""
    with server.client() as client:
        workflow = client.workflows.get(workflow_id)
    if server.json:
        as_json(workflow)
        return
    disabled_note = "" if workflow.enabled else ", and is disabled"
    print_line(
        f"{workflow.name} is version {workflow.version}, for {pluralize(workflow.price, 'credit')}{disabled_note}.\n"
    )
    table(
        ("STAGE", "KIND", "TASKS", "APPROVAL"),
        (
            (s["name"], s["kind"], s.get("tasks"), "yes" if s.get("approval") else "no")
            for s in workflow.definition["stages"]
        ),
        empty="It has no stages; each job defines its own.",
    )
    schema = workflow.definition.get("input_schema")
    if schema is not None:
        print_line("\nIts input, as JSON Schema:")
        as_json(schema)


@workflows.command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="TOML files, or folders with them.")],
    json: AsJson = False,
) -> None:
    """Check workflow files, without a server; exit code 1 on a finding."""
    from callsheet import catalog  # noqa: PLC0415 - slow: imports the schema library

    findings = catalog.check(paths)
    if json:
        as_json({"valid": not findings, "findings": findings})
    else:
        for finding in findings:
            print_line(str(finding))
        print_line(_format_summary(len(findings)))
    if findings:
        raise typer.Exit(FAILED)


def _format_summary(count: int) -> str:
    return {0: "All workflows are valid.", 1: "1 finding."}.get(count, f"{count} findings.")


command(workflows)(apply)
command(workflows, "list")(list_workflows)
command(workflows, "show")(show_workflow)
