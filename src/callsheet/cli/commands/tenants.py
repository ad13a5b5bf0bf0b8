"""`callsheet tenants`: list, create and update tenants."""

from enum import StrEnum
from typing import Annotated

import typer
from msgspec import UNSET

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, create_group, format_time, print_line, table
from callsheet.core.model.plural import pluralize

tenants = create_group("tenants", help="List, create and update tenants.", invoke_without_command=True)


class Status(StrEnum):
    """Whether a tenant's keys are accepted."""

    active = "active"
    suspended = "suspended"


def register(app: typer.Typer) -> None:
    """Add the commands about tenants."""
    app.add_typer(tenants)


def list_tenants(server: Server) -> None:
    """List tenants, by name."""
    with server.client() as client:
        listed = list(client.tenants.list())
    if server.json:
        as_json({"tenants": listed})
        return
    table(
        ("TENANT", "STATUS", "WEIGHT", "ACTIVE JOBS MAX", "CREATED"),
        (
            (
                t.id,
                t.status,
                t.weight,
                "" if t.active_jobs_max is None else t.active_jobs_max,
                format_time(t.created_at),
            )
            for t in listed
        ),
        empty="There are no tenants.",
        droppable=("CREATED", "ACTIVE JOBS MAX"),
    )


def set_tenant(
    server: Server,
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    *,
    weight: Annotated[
        int | None, typer.Option("--weight", min=1, help="Its share of the workers when tasks are waiting.")
    ] = None,
    status: Annotated[
        Status | None, typer.Option("--status", help="A `suspended` tenant can read, but change nothing.")
    ] = None,
    active_jobs_max: Annotated[
        int | None, typer.Option("--active-jobs-max", min=0, help="The maximum number of active jobs of a user.")
    ] = None,
    no_active_jobs_max: Annotated[
        bool, typer.Option("--no-active-jobs-max", help="Remove the limit on active jobs.")
    ] = False,
) -> None:
    """Create or update a tenant. Options that you omit stay unchanged."""
    with server.client() as client:
        tenant = client.tenants.put(
            name, weight=weight, status=None if status is None else status.value,
            active_jobs_max=None if no_active_jobs_max else UNSET if active_jobs_max is None else active_jobs_max,
        )  # fmt: skip
    if server.json:
        as_json(tenant)
        return
    limit = "any number of active jobs"
    if tenant.active_jobs_max is not None:
        limit = pluralize(tenant.active_jobs_max, "active job")
    print_line(f"{tenant.id} is {tenant.status}, has weight {tenant.weight}, and {limit} for each user.")


command(tenants, is_default=True)(list_tenants)
command(tenants, "list")(list_tenants)
command(tenants, "set")(set_tenant)
