"""What all servers of one database share: the signing secret and the file storage.

The database has a random id. A storage belongs to one database: it contains a marker, an empty object whose name is the
id of the database and the id of the storage. The marker is a part of the storage, so a storage that was moved or copied
as a whole is recognized.
"""

from collections.abc import Iterable, Mapping

from callsheet.core.model.errors import Conflict

DATABASE_ID, SIGNING_SECRET, FILE_STORAGE = "database_id", "signing_secret", "file_storage"
"""The names of the recorded values: a random id, a fingerprint of the secret, the id of the storage."""
_REPLACED = {
    SIGNING_SECRET: "The signing secret of the database was replaced. Restart this server with the new secret.",
    FILE_STORAGE: "The file storage of the database was replaced. Restart this server with the new storage.",
}


def require_secret(recorded: str | None, own: str | None) -> None:
    """Refuse a signing secret whose fingerprint is not the recorded one; None means that there is none."""
    if recorded is not None and recorded != own:
        problem = (
            "This server has no signing secret, but its database was used with one."
            if own is None
            else "The signing secret of this server is not the one of its database."
        )
        raise Conflict(
            "signing_secret_differs",
            f"{problem} All servers of a database need the same secret: pass it with --signing-secret-file, or restore "
            "secret.key in the data folder. To replace the secret on purpose, run `callsheet installation "
            "accept-secret`.",
        )


def marker_name(database_id: str, storage_id: str) -> str:
    """Return the name of a storage's marker."""
    return f"{database_id}.{storage_id}"


def storage_id_in(markers: Iterable[str], database_id: str) -> str | None:
    """Return the id of a storage that has no recorded id yet; None if it has no marker. Refuses another database's."""
    owners = sorted(tuple(marker.partition(".")[::2]) for marker in markers)
    if any(owner != database_id for owner, _ in owners):
        raise Conflict(
            "file_storage_taken",
            "The file storage belongs to another database, which would lose its files. Choose another folder or prefix "
            "with blobs.url, or another --data-dir. To give the storage to this database on purpose, run `callsheet "
            "installation accept-storage`.",
        )
    return owners[0][1] if owners else None


def require_storage(*, has_marker: bool) -> None:
    """Refuse a storage without the marker of the recorded storage."""
    if not has_marker:
        raise Conflict(
            "file_storage_differs",
            "The file storage of this server is not the one of its database. All servers of a database need the same "
            "storage: check blobs.url, --data-dir and whether the folder is mounted. To use this storage on purpose, "
            "run `callsheet installation accept-storage`.",
        )


def replaced_value(recorded: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """Say which value was replaced since this server started; None if all are the same."""
    return next((text for name, text in _REPLACED.items() if recorded.get(name) != own.get(name)), None)
