"""`callsheet tenants`: list, show, create and update tenants."""

from enum import StrEnum
from typing import Annotated

import typer
from msgspec import UNSET, UnsetType

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, create_group, format_time, print_line, table
from callsheet.core.model.plural import pluralize

tenants = create_group("tenants", help="List, show, create and update tenants.", invoke_without_command=True)


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


def set_tenant(  # noqa: PLR0913 - one parameter per option
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
    storage_bytes_max: Annotated[
        int | None, typer.Option("--storage-bytes-max", min=0, help="The maximum size of all files of the tenant.")
    ] = None,
    no_storage_bytes_max: Annotated[
        bool, typer.Option("--no-storage-bytes-max", help="Use the server's limit on the size of files.")
    ] = False,
) -> None:
    """Create or update a tenant. Options that you omit stay unchanged."""
    with server.client() as client:
        tenant = client.tenants.put(
            name, weight=weight, status=None if status is None else status.value,
            active_jobs_max=_own_limit(active_jobs_max, remove=no_active_jobs_max),
            storage_bytes_max=_own_limit(storage_bytes_max, remove=no_storage_bytes_max),
        )  # fmt: skip
    if server.json:
        as_json(tenant)
        return
    limit = "any number of active jobs"
    if tenant.active_jobs_max is not None:
        limit = pluralize(tenant.active_jobs_max, "active job")
    print_line(f"{tenant.id} is {tenant.status}, has weight {tenant.weight}, and {limit} for each user.")


def _own_limit(limit: int | None, *, remove: bool) -> int | UnsetType | None:
    """Return a limit to set, None to remove it, or UNSET to keep it."""
    return None if remove else UNSET if limit is None else limit


def show_tenant(server: Server, name: Annotated[str, typer.Argument(help="The tenant's name.")]) -> None:
    """Show a tenant and how much file storage it uses."""
    with server.client() as client:
        details = client.tenants.get(name)
    if server.json:
        as_json(details)
        return
    tenant, storage = details.tenant, details.storage
    print_line(f"{tenant.id} is {tenant.status} and has weight {tenant.weight}.")
    table(
        ("FILES", "BYTES", "MAX"),
        (
            ("stored", storage.stored_bytes, ""),
            ("pending", storage.pending_bytes, storage.pending_bytes_max),
            ("together", storage.stored_bytes + storage.pending_bytes, storage.storage_bytes_max),
        ),
        empty="",
    )


command(tenants, is_default=True)(list_tenants)
command(tenants, "list")(list_tenants)
command(tenants, "show")(show_tenant)
command(tenants, "set")(set_tenant)
