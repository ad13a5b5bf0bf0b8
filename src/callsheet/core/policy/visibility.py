"""Who may see what: the rules for jobs, files and wallets.

A viewer sees objects of its tenant. A viewer with a user sees only objects of that user. For all other objects, the
response is the same as for objects that do not exist.
"""

from typing import Protocol

from callsheet.core.model.rows import File, Job

OPERATOR = "operator"
"""The role that sees all tenants."""


class Viewer(Protocol):
    """Who reads: a tenant, one of its users, or an operator."""

    @property
    def tenant(self) -> str: ...

    @property
    def user(self) -> str | None:
        """The only user whose data it sees; None for all users."""

    @property
    def role(self) -> str: ...


def may_see_user(viewer: Viewer, user: str) -> bool:
    """Return whether a viewer sees what belongs to a user of its tenant."""
    return viewer.user is None or viewer.user == user


def may_see_job(viewer: Viewer, job: Job) -> bool:
    """Return whether a viewer sees a job; a deleted job is visible to no one."""
    return job.tenant == viewer.tenant and job.deleted_at is None and may_see_user(viewer, job.user_id)


def may_see_file(viewer: Viewer, file: File) -> bool:
    """Return whether a viewer sees a file."""
    return file.tenant == viewer.tenant and may_see_user(viewer, file.user_id)


def sees_all_tenants(viewer: Viewer) -> bool:
    return viewer.role == OPERATOR
