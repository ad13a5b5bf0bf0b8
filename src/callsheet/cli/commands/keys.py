"""`callsheet keys`: create, list and revoke API keys."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, create_group, format_time, print_line, table

if TYPE_CHECKING:
    from callsheet.client import Key

keys = create_group("keys", help="Create, list and revoke API keys.")


class Role(StrEnum):
    """The permissions of a key."""

    admin = "admin"
    client = "client"
    viewer = "viewer"
    worker = "worker"


def register(app: typer.Typer) -> None:
    """Add the commands about API keys."""
    app.add_typer(keys)


def create(
    server: Server,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    role: Annotated[Role, typer.Option("--role", help="Permissions of the key.")],
    operator: Annotated[
        bool,
        typer.Option("--operator", help="Create an operator key: an admin key for all tenants (with --role admin)."),
    ] = False,
    expires_in: Annotated[
        int | None, typer.Option("--expires-in", min=1, help="Seconds until the key expires.")
    ] = None,
) -> None:
    """Create a key and print its secret, only once.

    The key belongs to your tenant, or to --tenant. `--role admin --operator` creates an operator key, `--role worker` a
    fleet secret.
    """
    if operator and (server.tenant is not None or role is not Role.admin):
        raise typer.BadParameter("--operator needs --role admin and no --tenant: an operator key has no tenant.")
    with server.client() as client:
        created = client.keys.create(
            name, role.value, tenant="" if operator else server.tenant, expires_in_seconds=expires_in
        )
    if server.json:
        as_json(created)
        return
    print_line(
        f"Key {created.key.id} ({_role_name(created.key)}, {created.key.tenant or 'all tenants'}). "
        "The secret is shown once:"
    )
    print_line(created.secret)


def list_keys(server: Server) -> None:
    """List keys, oldest first, without their secrets."""
    with server.client() as client:
        listed = list(client.keys.list())
    if server.json:
        as_json({"keys": listed})
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
            for k in listed
        ),
        empty="There are no keys.",
        droppable=("REVOKED", "EXPIRES", "CREATED", "TENANT", "ROLE"),
        wrappable=("NAME",),
    )


def _role_name(key: "Key") -> str:
    """Return a role as `/v1/me` names it: an admin key without a tenant is an operator."""
    return "operator" if key.role == Role.admin and not key.tenant else key.role


def _key_status(key: "Key") -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else "active"


def revoke(server: Server, key_id: Annotated[str, typer.Argument(metavar="KEY", help="A key's id.")]) -> None:
    """Revoke a key: requests with it fail from now on."""
    with server.client() as client:
        revoked = client.keys.revoke(key_id)
    if server.json:
        as_json(revoked)
        return
    print_line(f"Key {revoked.id} ({revoked.name}) is revoked.")


command(keys)(create)
command(keys, "list")(list_keys)
command(keys)(revoke)
