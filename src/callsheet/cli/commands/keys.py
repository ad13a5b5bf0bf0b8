"""Commands for whoever runs the house: keys, workflows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import FAILED, AsJson, Failure, as_json, create_group, format_time, print_line, table
from callsheet.core.model.plural import counted

if TYPE_CHECKING:
    from callsheet.client import Key
    from callsheet.core.model.workflow_definition import WorkflowDefinition

keys = create_group("keys", help="Make, list and revoke API keys.")
workflows = create_group("workflows", help="Check workflow files, put them on a server, look at them.")


class Role(StrEnum):
    """What a key may do."""

    admin = "admin"
    client = "client"
    viewer = "viewer"
    worker = "worker"


def register(app: typer.Typer) -> None:
    """Add the commands of the house."""
    app.add_typer(keys)
    app.add_typer(workflows)


def create(
    server: Server,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    role: Annotated[Role, typer.Option("--role", help="What it may do.")],
    operator: Annotated[
        bool, typer.Option("--operator", help="Of no tenant: an admin key for the whole house (--role admin).")
    ] = False,
    expires_in: Annotated[int | None, typer.Option("--expires-in", min=1, help="Seconds until it ends.")] = None,
) -> None:
    """Make a key and print its secret, this once.

    It is of your tenant, or of the one in --tenant. `--role admin --operator` makes another operator, `--role worker` a
    secret for the fleet.
    """
    if operator and (server.tenant is not None or role is not Role.admin):
        raise typer.BadParameter("--operator goes with --role admin, and without --tenant: it is of no tenant.")
    with server.client() as client:
        created = client.keys.create(
            name, role.value, tenant="" if operator else server.tenant, expires_in_seconds=expires_in
        )
    if server.json:
        as_json(created)
        return
    print_line(
        f"Key {created.key.id} ({_role_name(created.key)} of {created.key.tenant or 'the operator'}). "
        "The secret is shown once:"
    )
    print_line(created.secret)


def list_keys(server: Server) -> None:
    """List keys, oldest first; secrets are not kept."""
    with server.client() as client:
        found = list(client.keys.list())
    if server.json:
        as_json({"keys": found})
        return
    table(
        ("KEY", "NAME", "ROLE", "STATUS", "TENANT", "CREATED", "EXPIRES", "REVOKED"),
        (
            (
                k.id,
                k.name,
                _role_name(k),
                _key_status(k),
                k.tenant,
                *map(format_time, (k.created_at, k.expires_at, k.revoked_at)),
            )
            for k in found
        ),
        empty="There are no keys.",
        least=("REVOKED", "EXPIRES", "CREATED", "TENANT", "ROLE"),
        text=("NAME",),
    )


def _role_name(key: "Key") -> str:
    """Name a role as `/v1/me` does: the admin of no tenant is an operator."""
    return "operator" if key.role == Role.admin and not key.tenant else key.role


def _key_status(key: "Key") -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else "active"


def revoke(server: Server, key_id: Annotated[str, typer.Argument(metavar="KEY", help="A key's id.")]) -> None:
    """Revoke a key: nobody gets in with it any more."""
    with server.client() as client:
        done = client.keys.revoke(key_id)
    if server.json:
        as_json(done)
        return
    print_line(f"Key {done.id} ({done.name}) is revoked.")


def apply(
    server: Server,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="TOML files, or folders with them.")],
) -> None:
    """Put workflows on a server: all or, if one is unsound, none.

    An equal one changes nothing.
    """
    import msgspec  # noqa: PLC0415 - only this command needs it

    definitions = load_definitions(paths)
    with server.client() as client:
        done = [client.workflows.put(definition.name, msgspec.to_builtins(definition)) for definition in definitions]
    if server.json:
        as_json({"workflows": done})
        return
    for workflow in done:
        print_line(f"{workflow.name} is version {workflow.version}, for {counted(workflow.price, 'credit')}.")


def load_definitions(paths: Sequence[Path]) -> list["WorkflowDefinition"]:
    """Read workflow files; what is wrong with them is a failure, one line each."""
    from callsheet import catalog  # noqa: PLC0415 - brings the schema library

    try:
        return catalog.load(*paths)
    except catalog.CatalogError as error:
        raise Failure(str(error), code="invalid_workflow") from None


def list_workflows(server: Server) -> None:
    """List the workflows of a server."""
    with server.client() as client:
        found = list(client.workflows.list())
    if server.json:
        as_json({"workflows": found})
        return
    table(
        ("WORKFLOW", "VERSION", "PRICE", "STAGES", "ENABLED"),
        ((w.name, w.version, w.price, ", ".join(w.stages), "yes" if w.enabled else "no") for w in found),
        empty="There are no workflows.",
        least=("VERSION",),
        text=("STAGES",),
    )


def show_workflow(
    server: Server, workflow_id: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Name of the workflow.")]
) -> None:
    """Show a workflow: its price, its stages, its input."""
    with server.client() as client:
        found = client.workflows.get(workflow_id)
    if server.json:
        as_json(found)
        return
    disabled_note = "" if found.enabled else ", and is not offered"
    print_line(f"{found.name} is version {found.version}, for {counted(found.price, 'credit')}{disabled_note}.\n")
    table(
        ("STAGE", "KIND", "TASKS", "APPROVAL"),
        ((s["name"], s["kind"], s.get("tasks"), "yes" if s.get("gate") else "no") for s in found.definition["stages"]),
        empty="It has no stages: a job brings its own.",
    )
    schema = found.definition.get("input_schema")
    if schema is not None:
        print_line("\nIts input, as JSON Schema:")
        as_json(schema)


@workflows.command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="TOML files, or folders with them.")],
    json: AsJson = False,
) -> None:
    """Check workflow files, without a server; exit code 1 on a finding."""
    from callsheet import catalog  # noqa: PLC0415 - brings the schema library

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
    return {0: "Every workflow is sound.", 1: "1 finding."}.get(count, f"{count} findings.")


command(keys)(create)
command(keys, "list")(list_keys)
command(keys)(revoke)
command(workflows)(apply)
command(workflows, "list")(list_workflows)
command(workflows, "show")(show_workflow)
