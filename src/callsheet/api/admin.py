"""Tenants, API keys, user tokens, the audit log, and the state of the server."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from callsheet.api.shared_fields import LAST_ID, Example, SecretStruct, Time, doc


class Tenant(Struct, frozen=True):
    """A tenant: a customer whose data is separate from all others."""

    id: Annotated[str, doc("Name of the tenant.", "acme")]
    weight: Annotated[int, doc("Share of the workers when tenants compete: 2 gets twice as many tasks as 1.", 1)]
    status: Annotated[str, doc("`active`, or `suspended`: its keys can read, but change nothing.", "active")]
    active_jobs_max: Annotated[
        int | None, doc("Maximum number of active jobs per user. Null means the server's `active_jobs_max`.", 20)
    ]
    created_at: Annotated[Time, doc("Time at which the tenant was created.", Example.AT)]
    storage_bytes_max: Annotated[
        int | None, doc("Maximum size of its files, in bytes. Null means the server's `storage_bytes_max`.", None)
    ]


class StorageUsage(Struct, frozen=True):
    """How much file storage a tenant uses, in bytes."""

    stored_bytes: Annotated[int, doc("Size of the stored files: uploads and outputs of jobs.", 7_340_032)]
    pending_bytes: Annotated[
        int, doc("Size of unfinished uploads, and of what running tasks have announced to upload.", 1_048_576)
    ]
    storage_bytes_max: Annotated[int, doc("Maximum of both together: the tenant's own, or the server's.", 1024**4)]
    pending_bytes_max: Annotated[int, doc("Maximum of `pending_bytes`.", 256 * 1024**3)]


class TenantDetails(Struct, frozen=True):
    """A tenant and its use of file storage."""

    tenant: Annotated[Tenant, doc("The tenant.")]
    storage: Annotated[StorageUsage, doc("How much file storage it uses.")]


class TenantPage(Struct, frozen=True):
    """One page of tenants, sorted by name."""

    tenants: Annotated[list[Tenant], doc("Tenants of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class TenantBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's settings. Fields that you leave out keep their value."""

    weight: Annotated[
        int | None, doc("Share of the workers when tenants compete: 2 gets twice as many tasks as 1.", 2)
    ] = None
    status: Annotated[
        Literal["active", "suspended"] | None,
        doc("`suspended` lets the tenant's keys read, but change nothing. `active` ends the suspension."),
    ] = None
    active_jobs_max: Annotated[
        int | UnsetType | None,
        doc("Maximum number of active jobs per user. Null means the server's `active_jobs_max`.", 20),
    ] = UNSET
    storage_bytes_max: Annotated[
        int | UnsetType | None,
        doc("Maximum size of the tenant's files, in bytes. Null means the server's `storage_bytes_max`.", 10 * 1024**3),
    ] = UNSET


class Key(Struct, frozen=True):
    """An API key, without its secret."""

    id: Annotated[str, doc("Id of the key. It is not the secret.", Example.KEY_ID)]
    tenant: Annotated[str, doc("Tenant of the key. Empty for operator keys and fleet secrets.", "acme")]
    role: Annotated[
        str,
        doc("What the key may do: `admin`, `client`, `viewer` or `worker`. An `admin` key without a tenant is an "
            "operator key; a `worker` key is a fleet secret.", "client"),
    ]  # fmt: skip
    name: Annotated[str, doc("Name that you gave the key.", "web shop")]
    created_at: Annotated[Time, doc("Time at which the key was created.", Example.AT)]
    expires_at: Annotated[Time | None, doc("Time at which the key expires. Null means never.", None)]
    revoked_at: Annotated[Time | None, doc("Time at which the key was revoked. Null if it was not.", None)]


class NewKey(SecretStruct, frozen=True):
    """A new API key with its secret, which is returned once."""

    key: Annotated[Key, doc("The key, without its secret.")]
    secret: Annotated[str, doc("Send this as `Authorization: Bearer …`. It is not shown again.", "cs_…")]


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key to create."""

    name: Annotated[str, doc("A name by which you recognize the key.", "web shop")]
    role: Annotated[
        Literal["admin", "client", "viewer", "worker"],
        doc("What the key may do. `worker` creates a fleet secret, which only operators can do.", "client"),
    ]
    tenant: Annotated[
        str | None,
        doc("Tenant of the key. Default: your own. Only operators can name another tenant. An empty tenant with the "
            "role `admin` creates an operator key.", "acme"),
    ] = None  # fmt: skip
    expires_in_seconds: Annotated[int | None, doc("How long the key is valid. Default: forever.")] = None


class KeyPage(Struct, frozen=True):
    """One page of API keys, oldest first."""

    keys: Annotated[list[Key], doc("Keys of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A user token to create."""

    user: Annotated[str, doc("Your id for the user whose jobs, files and wallet the token can read.", "ann")]
    expires_in_seconds: Annotated[
        int, doc("How long the token is valid, in seconds, at most `token_expires_in_seconds_max`.", 600)
    ] = 600


class Token(SecretStruct, frozen=True):
    """A short-lived user token for browsers. It reads one user's jobs, files and wallet."""

    token: Annotated[str, doc("Send this as `Authorization: Bearer …` or as `?token=`.", "cst_…")]
    user: Annotated[str, doc("Your id for the user.", "ann")]
    expires_in_seconds: Annotated[int, doc("How long the token is valid, in seconds.", 600)]


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Filter and pagination of the audit log. The newest entry is first."""

    cursor: Annotated[str, doc("`next` of the previous page.", Example.KEY_ID)] = LAST_ID
    limit: Annotated[int, doc("Maximum number of entries to return.", 50)] = 100
    subject: Annotated[str | None, doc("Return only entries with this `subject`.", "ann")] = None


class AuditEntry(Struct, frozen=True):
    """One administrative action."""

    id: Annotated[str, doc("Id of the entry.", Example.JOB_ID)]
    tenant: Annotated[str, doc("Tenant that the action is about. Empty if it is about all tenants.", "default")]
    at: Annotated[Time, doc("Time of the action.", Example.AT)]
    by: Annotated[str, doc("Who did it: the id of a key, `worker:` and a name, or a program.", Example.KEY_ID)]
    action: Annotated[str, doc("What was done, such as `wallet.topup` or `worker.revoke`.", "wallet.topup")]
    subject: Annotated[str, doc("Id or name of the job, user, key, worker, tenant or workflow.", "ann")]
    data: Annotated[Any, doc("Parameters of the action; or null.", {"amount": 100, "reason": "top-up"})]
    seq: Annotated[int, doc("Number of the entry in its tenant's chain, from 1 and without gaps.", 12)]
    digest: Annotated[str, doc("SHA-256 of this entry and of the digest before it in its chain.", Example.DIGEST)]


class AuditLog(Struct, frozen=True):
    """One page of the audit log, newest first."""

    entries: Annotated[list[AuditEntry], doc("Entries of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class Queue(Struct, frozen=True):
    """Tasks of one kind and workflow that wait or run."""

    kind: Annotated[str, doc("Kind of the tasks.", "sketch")]
    workflow: Annotated[str, doc("Name of the workflow.", "sketch")]
    waiting: Annotated[int, doc("Tasks that wait for a worker.", 4)]
    waiting_is_capped: Annotated[bool, doc("Whether more tasks wait than `waiting` says.", False)]
    running: Annotated[int, doc("Tasks that are running.", 1)]
    running_is_capped: Annotated[bool, doc("Whether more tasks run than `running` says.", False)]


class Ops(Struct, frozen=True):
    """Load of the installation, over all tenants. Each count stops at the setting `scan_rows_max`."""

    measured_at: Annotated[Time, doc("Time of the measurement.", Example.AT)]
    active_jobs: Annotated[dict[str, int], doc("Jobs that have not ended, by status.", {"queued": 9, "running": 3})]
    active_jobs_is_capped: Annotated[
        dict[str, bool],
        doc("Whether more jobs than `active_jobs` says have a status.", {"queued": False, "running": False}),
    ]
    queues: Annotated[list[Queue], doc("Waiting and running tasks, by kind and workflow.")]
    workers: Annotated[int, doc("Workers: registered ones with recent contact, and those inside this server.", 3)]
    busy_workers: Annotated[int, doc("Workers that are running tasks.", 2)]
    busy_workers_is_capped: Annotated[
        bool, doc("Whether more workers are running tasks than `busy_workers` says.", False)
    ]
    streams: Annotated[int, doc("Event streams that are open on this server.", 3)]
    provider_calls: Annotated[int, doc("Provider calls that have not ended.", 2)]
    provider_calls_is_capped: Annotated[bool, doc("Whether there are more than `provider_calls`.", False)]
    provider_calls_overdue: Annotated[int, doc("Provider calls whose poll is more than a minute late.", 0)]
    provider_calls_overdue_is_capped: Annotated[
        bool, doc("Whether there are more than `provider_calls_overdue`.", False)
    ]


class Identity(Struct, frozen=True):
    """Who you are, according to your key or token."""

    role: Annotated[
        str,
        doc("What you may do: `operator`, `admin`, `client` or `viewer`; `worker` for a fleet secret, `machine` for a "
            "worker's token, `user` for a user token.", "client"),
    ]  # fmt: skip
    tenant: Annotated[str, doc("Tenant that you act for. Empty for fleet secrets and workers.", "default")]
    id: Annotated[str, doc("Id of the key; or `user:` and the user, `worker:` and the worker.", Example.KEY_ID)]
    user: Annotated[str | None, doc("User of a user token. Null for keys.", None)]


class Health(Struct, frozen=True):
    """State of the server."""

    status: Annotated[str, doc("`ok` from `/healthz`, `ready` from `/readyz`.", "ok")]
