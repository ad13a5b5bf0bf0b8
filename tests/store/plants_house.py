"""Faults in files, in keys and in the audit log, one or more per rule."""

FILES = [
    ("O2", "UPDATE file SET bytes = -1 WHERE job_id = '{done}'"),
    ("O2", "UPDATE file SET name = '' WHERE job_id = '{done}' AND no = 1"),
    ("O2", "UPDATE file SET media_type = 'png' WHERE job_id = '{done}'"),
    ("O2", "UPDATE file SET sha256 = '' WHERE job_id = '{done}' AND no = 2"),
    ("O2", "UPDATE file SET sha256 = upper(sha256) WHERE job_id = '{done}'"),
    ("O3", "DELETE FROM file WHERE job_id = '{done}' AND no = 1"),
    ("O3", "UPDATE file SET no = 3 WHERE job_id = '{done}' AND no = 2"),
    ("O3", "UPDATE file SET no = 1 WHERE job_id = '{done}'"),
    ("O3", "UPDATE file SET no = no - 1 WHERE job_id = '{done}'"),
    ("O3", "UPDATE file SET id = 'one' WHERE job_id = '{done}'"),
    ("O4", "UPDATE file SET attempt = 2 WHERE job_id = '{done}'"),
    ("O4", "UPDATE file SET job_id = '{gift}' WHERE job_id = '{done}'"),
    ("O4", "UPDATE file SET tenant = 'other' WHERE job_id = '{done}'"),
    ("O4", "UPDATE file SET task_id = '{leased_task}', job_id = '{running}' WHERE job_id = '{done}'"),
    ("O4", "UPDATE file SET task_id = 'nobody' WHERE job_id = '{done}'"),
    ("O4", "UPDATE file SET created_at = created_at + 1 WHERE job_id = '{done}' AND no = 1"),
    ("O4", "UPDATE attempt SET outcome = 'failed' WHERE job_id = '{done}'"),
    ("O5", "UPDATE file SET job_id = '{gone}' WHERE job_id = '{done}'"),
]

REVOKED_LATER = "UPDATE api_key SET revoked_at = created_at WHERE id = '{client_key}'"

KEYS = [
    ("A4", "DELETE FROM audit WHERE action = 'key.create' AND subject = '{client_key}'"),
    ("A4", "DELETE FROM audit WHERE action = 'key.revoke'"),
    ("A4", "UPDATE api_key SET revoked_at = NULL WHERE id = '{revoked_key}'"),
    ("A4", REVOKED_LATER),
    ("A4", "DELETE FROM audit WHERE action = 'wallet.adjust'"),
    ("A4", "DELETE FROM audit WHERE action = 'wallet.topup' AND tenant = 'other'"),
    ("A4", "UPDATE audit SET tenant = 'other' WHERE action = 'wallet.adjust'"),
    ("A4", "DELETE FROM entry WHERE kind = 'adjust'"),
    ("A5", "UPDATE api_key SET tenant = '' WHERE id = '{client_key}'"),
    ("A5", "UPDATE api_key SET tenant = 'nobody' WHERE id = '{client_key}'"),
    ("A5", "UPDATE api_key SET role = 'king' WHERE id = '{operator_key}'"),
    ("A5", "DELETE FROM tenant WHERE id = 'acme'"),
    ("A5", "UPDATE api_key SET expires_at = created_at WHERE id = '{client_key}'"),
    ("A5", "UPDATE api_key SET revoked_at = created_at - 1 WHERE id = '{revoked_key}'"),
    ("A5", "UPDATE api_key SET secret_hash = 'cs_the secret itself' WHERE id = '{client_key}'"),
    ("A5", "UPDATE api_key SET secret_hash = substr(secret_hash, 1, 63) || 'Z' WHERE id = '{client_key}'"),
    ("A6", "UPDATE audit SET actor = NULL WHERE action = 'key.create'"),
    ("A6", "UPDATE audit SET action = 'something' WHERE action = 'workflow.put'"),
    ("A6", "UPDATE audit SET subject = '' WHERE action = 'workflow.put'"),
    ("A6", "UPDATE audit SET at = 0 WHERE action = 'tenant.put'"),
    ("A6", "DELETE FROM api_key WHERE id = '{revoked_key}'"),
]
