"""Records what the servers of a database share, at first use, and checks it when a server starts.

The database decides: of two servers that start at the same time, one records its value, and the other gets that value.
The secret itself is never stored, only a fingerprint that depends on the id of the database.
"""

import hmac
import secrets

from callsheet.blobs.base import Blobs
from callsheet.core.model.commands import RecordInstallationValue, ReplaceInstallationValue
from callsheet.core.policy.signing_secret_and_storage import (
    DATABASE_ID,
    FILE_STORAGE,
    SIGNING_SECRET,
    marker_name,
    require_secret,
    require_storage,
    storage_id_in,
)
from callsheet.engine.loops.loop_protocol import CommandExecutor
from callsheet.engine.reads.synchronous import BlockingReader

_FINGERPRINT_PURPOSE = "fingerprint of the signing secret"


class Installation:
    """The values that all servers of one database share. Refuses a secret or a storage that is not the recorded one."""

    def __init__(self, engine: CommandExecutor) -> None:
        self._engine = engine
        self.database_id = self._record(DATABASE_ID, secrets.token_hex(16))

    def require_recorded_secret(self) -> None:
        """Refuse a server without a secret, if the database was used with one."""
        require_secret(recorded_values(self._engine.reads).get(SIGNING_SECRET), None)

    def confirm_secret(self, secret: bytes) -> str:
        """Record the secret's fingerprint, or compare it with the recorded one. Returns the fingerprint."""
        own = fingerprint(secret, self.database_id)
        require_secret(self._record(SIGNING_SECRET, own), own)
        return own

    def confirm_storage(self, blobs: Blobs) -> str:
        """Record the id of the storage, or check that this is the recorded storage. Returns the id."""
        recorded = recorded_values(self._engine.reads).get(FILE_STORAGE)
        if recorded is None:
            recorded = self._record_storage(blobs)
        require_storage(has_marker=blobs.has_marker(marker_name(self.database_id, recorded)))
        return recorded

    def accept_secret(self, secret: bytes) -> bool:
        """Record another secret in place of the earlier one. Returns whether it is another."""
        return self._replace(SIGNING_SECRET, fingerprint(secret, self.database_id))

    def accept_storage(self, blobs: Blobs) -> bool:
        """Record another storage, which then belongs to this database only. Returns whether it is another."""
        own = [marker for marker in blobs.markers() if marker.startswith(f"{self.database_id}.")]
        storage_id = storage_id_in(own, self.database_id) or secrets.token_hex(16)
        marker = marker_name(self.database_id, storage_id)
        blobs.add_marker(marker)
        changed = self._replace(FILE_STORAGE, storage_id)
        for other in blobs.markers():
            if other != marker:
                blobs.remove_marker(other)
        return changed

    def _record_storage(self, blobs: Blobs) -> str:
        """Mark a new storage and record it. If another server was faster, its storage counts."""
        found = storage_id_in(blobs.markers(), self.database_id)
        own = found or secrets.token_hex(16)
        marker = marker_name(self.database_id, own)
        blobs.add_marker(marker)
        recorded = self._record(FILE_STORAGE, own)
        if recorded != own and found is None:
            blobs.remove_marker(marker)
        return recorded

    def _record(self, name: str, value: str) -> str:
        return str(self._engine.execute(RecordInstallationValue(name=name, value=value)).value)

    def _replace(self, name: str, value: str) -> bool:
        before = recorded_values(self._engine.reads).get(name)
        self._engine.execute(ReplaceInstallationValue(name=name, value=value, requested_by="callsheet"))
        return before != value


def fingerprint(secret: bytes, database_id: str) -> str:
    """Return a text that identifies a secret and does not reveal it. It differs from database to database."""
    return hmac.digest(secret, f"{_FINGERPRINT_PURPOSE}\0{database_id}".encode(), "sha256").hex()


def recorded_values(read: BlockingReader) -> dict[str, str]:
    """Return the recorded values of a database, by name."""
    rows = read.fetch("recorded_values", ids=[DATABASE_ID, SIGNING_SECRET, FILE_STORAGE])
    return {name: value for name, value, _ in rows}


def check_storage(read: BlockingReader, blobs: Blobs) -> None:
    """Refuse a storage that is not the one of a database, without recording anything."""
    values = recorded_values(read)
    database_id, storage_id = values.get(DATABASE_ID, ""), values.get(FILE_STORAGE)
    if storage_id is None:
        storage_id_in(blobs.markers(), database_id)
    else:
        require_storage(has_marker=blobs.has_marker(marker_name(database_id, storage_id)))
