"""Error codes that several routes share, and the meaning of every code.

The sentences are those of docs/reference/errors.md; a test keeps both equal.
"""

TEXT = ("422 invalid_text",)
VALUES = (*TEXT, "422 out_of_range")
"""Any text may be impossible to store, and any number out of range."""
INPUT = ("422 input_too_deep", "422 input_too_large", *TEXT)
REFERENCES = ("404 file_not_found", "409 file_not_finished")
"""For inputs that refer to files."""
NOTES = (
    "422 invalid_label", "422 too_many_labels", "422 metadata_too_deep", "422 metadata_too_large",
    "422 trace_too_large",
)  # fmt: skip
"""For labels, metadata and trace."""
STAGE = (
    "422 invalid_stage", "422 invalid_kind", "422 invalid_provider", "422 invalid_graph", "422 too_many_stages",
    *VALUES,
)  # fmt: skip

ANY_CODE = "*"
"""Stands for the codes of gates, which define their own."""

CODE_MEANINGS: dict[str, str] = {
    ANY_CODE: "A gate of this server refused the job. The gate defines the code.",
    "already_uploaded": "The bytes of this file were already uploaded and cannot be overwritten. Create a new upload.",
    "approver_required": "The approval has no `approver`. Send the name or id of the person who approves.",
    "balance_too_large": "The wallet would exceed `balance_max` credits. Add a smaller amount.",
    "body_required": "The request has no body. Send a JSON body.",
    "body_timeout": "The body did not arrive in time. The server closes the connection.",
    "body_too_large": "The body is larger than the limit of this route. The server closes the connection.",
    "cancel_requested": "The job is being canceled and cannot be paused.",
    "cannot_revoke_own_key": "A key cannot revoke itself. Use another key.",
    "capabilities_too_deep": "The worker's capabilities are nested too deep.",
    "capabilities_too_large": "The worker's capabilities are larger than `metadata_bytes_max` bytes.",
    "digest_mismatch": "The SHA-256 of the bytes differs from the declared one. Upload the right bytes again.",
    "file_deleted": "A file from an earlier stage of the job was deleted. Retry as a new job (`retry_as`).",
    "file_gone": "The file was deleted, or its retention period has ended.",
    "file_in_use": "An unfinished job or a workflow uses the file. Delete it when the job has ended.",
    "file_not_finished": "The file is still `uploading`. Upload its bytes and call finish first.",
    "file_not_found": "The file does not exist, or belongs to another tenant or user.",
    "file_not_uploaded": "The file has no bytes yet. Upload them to `upload.url`, then repeat the request.",
    "file_too_large": "The file exceeds the storage's limit for a single upload. Upload a smaller file.",
    "fleet_full": "The maximum number of workers is registered. The response contains the count and the limit.",
    "forbidden": "The key's role is not allowed to call this route. Use a key with one of the listed roles.",
    "headers_too_large": "Request line and headers are larger than `header_bytes_max` bytes. The server closes the "
    "connection.",
    "idempotency_key_conflict": "The body and the Idempotency-Key header contain different keys. Send only one.",
    "idempotency_key_reused": "The user's idempotency key was used before with another body or amount. Send the "
    "original body, or a new key.",
    "illegal_transition": "The current status does not allow this action. The response contains the current and the "
    "requested status.",
    "input_too_deep": "The input is nested deeper than `input_depth_max` levels.",
    "input_too_large": "The input exceeds `input_bytes_max` bytes as JSON, `input_items_max` items in one list or "
    "object, or has a very long field name.",
    "insufficient_credits": "The balance is lower than the price or the deducted amount. Top up the wallet. The "
    "response contains both numbers.",
    "internal_error": "The server failed unexpectedly. Search its log for the request id.",
    "invalid_body": "A field of the JSON body is missing, unknown or has the wrong type. The message names the field.",
    "invalid_cursor": "The cursor or Last-Event-ID is invalid. Pass `next` of the previous page, or start without a "
    "cursor.",
    "invalid_definition": "A field of the definition is unknown or has the wrong type. The message names the field.",
    "invalid_file": "The file's name, media type or SHA-256 is invalid, or a task's files are not numbered in order.",
    "invalid_graph": "The stage's ComfyUI graph is invalid, or a job contains a graph. The message names the node "
    "and the field.",
    "invalid_idempotency_key": "The idempotency key is empty, longer than `key_chars_max`, or contains unprintable "
    "characters.",
    "invalid_input": "The input is not JSON, or does not match the workflow's input schema or graph.",
    "invalid_json": "The body is not valid JSON, or is nested too deep.",
    "invalid_key": "The key is unknown, expired or revoked, or was not sent as `Authorization: Bearer`.",
    "invalid_key_name": "The key's name is empty, too long, or contains unprintable characters.",
    "invalid_kind": "The kind is not a valid name.",
    "invalid_label": "A label has an empty name, or its name or value is longer than `label_chars_max`.",
    "invalid_provider": "The provider is missing or not a valid name.",
    "invalid_query": "A query parameter is unknown, repeated or has the wrong type. The message names it.",
    "invalid_quote": "The quote was created for a different request. Create a new quote.",
    "invalid_rate": "The rate is not in the format `60/minute`.",
    "invalid_ref": "The provider's reference is empty, too long, or contains unprintable characters.",
    "invalid_request": "The request is not valid HTTP/1.1. The server closes the connection.",
    "invalid_signature": "The signed URL was changed, or was created for another method. Request a new URL.",
    "invalid_stage": "The stage's name is not a valid name.",
    "invalid_tenant": "The tenant's name is not a valid name.",
    "invalid_text": "A text contains a NUL character or an unpaired surrogate, which cannot be stored.",
    "invalid_user": "The user id is empty, too long, or contains unprintable characters.",
    "invalid_worker": "The worker's name is not a valid name.",
    "invalid_worker_token": "The worker's token is unknown, expired or revoked. Register again.",
    "invalid_workflow": "The definition's name, stages or input schema are invalid. The message says which.",
    "job_deleted": "The job that was created with this idempotency key has been deleted. Use a new key.",
    "job_ended": "The job has ended and cannot be changed.",
    "job_not_found": "The job does not exist, was deleted, or belongs to another tenant or user.",
    "key_in_url": "The URL contains an API key. Send it in the Authorization header; only user tokens may be in "
    "`?token`, where documented.",
    "key_not_found": "The key does not exist, or belongs to another tenant.",
    "kind_not_assigned": "The worker is no longer assigned to all requested kinds. Claim again.",
    "kind_not_offered": "The worker did not register the assigned kind. Assign only kinds that it offers.",
    "lease_lost": "The lease has ended: it expired, or the job was stopped. Stop working on the task.",
    "lease_not_found": "The lease does not exist, or belongs to another worker.",
    "length_required": "The request has no Content-Length header. Send it.",
    "metadata_too_deep": "The metadata is nested too deep.",
    "metadata_too_large": "The metadata is larger than `metadata_bytes_max` bytes.",
    "method_not_allowed": "This path does not support the method. `Allow` lists the supported methods.",
    "missing_key": "The request has no key. Send `Authorization: Bearer` with a key.",
    "not_ready": "The database does not answer. Do not route requests to this server until `/readyz` returns 200.",
    "nothing_to_refund": "The run consumed no credits: its whole price was refunded when it ended.",
    "out_of_range": "A number is outside its allowed range. The message names the field and the range.",
    "output_too_deep": "The output is nested too deep.",
    "output_too_large": "The output is larger than `output_bytes_max` bytes as JSON. Upload it as a file instead.",
    "preview_not_found": "The task has not uploaded a preview image.",
    "previous_stage_open": "The previous stage is not completed yet. Approve this stage afterwards.",
    "price_is_fixed": "The price of this workflow covers only its own tasks. You cannot add tasks to its jobs.",
    "quote_expired": "The quote has expired. Create a new quote.",
    "range_not_satisfiable": "The requested range is outside the file. `Content-Range` contains the file's size.",
    "reason_required": "The `reason` is empty. Send a reason for the requeue, adjustment or refund.",
    "route_not_found": "No route has this path.",
    "run_not_ended": "The run has not ended, so its cost is not final. Refund it when it has ended.",
    "run_not_found": "The job has no run with this number.",
    "secret_in_use": "Another key has the same secret. Create the key again.",
    "size_mismatch": "The number of bytes differs from the declared size. Upload the right bytes again.",
    "stage_ended": "The stage has ended. You cannot add tasks to it.",
    "stage_not_found": "The job has no stage with this number or name.",
    "stages_not_allowed": "The workflow defines its own stages. Submit the job without `stages`.",
    "stopping": "The server is shutting down. Retry after `Retry-After` seconds.",
    "storage_full": "The file storage is full. The upload was discarded.",
    "storage_unavailable": "The file storage does not answer. Retry after `Retry-After` seconds.",
    "target_too_long": "The URL is longer than `url_bytes_max` bytes.",
    "task_not_found": "The job has no task with this id.",
    "tenant_not_allowed": "Workers serve all tenants. Create the fleet key without `tenant`.",
    "tenant_not_found": "The tenant does not exist.",
    "tenant_required": "Only operator and fleet keys have no tenant. Send `tenant`.",
    "tenant_suspended": "The tenant is suspended. An operator can activate it.",
    "too_many_active_jobs": "The user has reached the limit of active jobs. Retry when one has ended. The response "
    "contains the count and the limit.",
    "too_many_commands": "The request contains more than `bulk_items_max` items. Split it.",
    "too_many_failed_auth": "Too many requests with invalid keys came from this IP address. Retry in a minute.",
    "too_many_heartbeats": "The worker exceeds `heartbeats_per_second_max`. Retry after `Retry-After` seconds.",
    "too_many_labels": "There are more than `labels_max` labels.",
    "too_many_queues": "Jobs of this workflow already use `queues_per_workflow_max` pairs of kind and provider. Use "
    "one of them.",
    "too_many_stages": "The job would have more than `stages_per_job_max` stages.",
    "too_many_streams": "The server, key or user has too many open event streams. Close some.",
    "too_many_tasks": "The request has no tasks, or the stage would have more than `tasks_per_stage_max`.",
    "too_many_uploads": "The user has `uploads_pending_max` unfinished uploads. Finish some of them first.",
    "trace_too_large": "The trace context is too large.",
    "type_mismatch": "The content or its Content-Type differs from the declared media type. Create an upload with "
    "the right type.",
    "unavailable": "The database does not answer, or the server has no free file handles. Retry after `Retry-After` "
    "seconds.",
    "unsupported_encoding": "The body is compressed. Send it without Content-Encoding.",
    "unsupported_media_type": "The body is not declared as JSON. Send `Content-Type: application/json`.",
    "url_expired": "The signed URL has expired. Request a new one.",
    "worker_ended": "The worker is offline or revoked and has no token.",
    "worker_full": "The worker already holds as many tasks as its `concurrency` allows.",
    "worker_not_approved": "The worker is waiting for an operator's approval. Claim again later.",
    "worker_not_found": "The worker does not exist.",
    "worker_rejected": "The worker verification service rejected the worker.",
    "worker_revoked": "The worker was revoked. An operator must approve it before it can register again.",
    "worker_verification_unavailable": "The worker verification service does not answer. Register again after "
    "`Retry-After` seconds.",
    "workflow_disabled": "The workflow is disabled.",
    "workflow_not_found": "The workflow does not exist.",
}


def describe_code(code: str) -> str:
    """Return what a code means. A plugin's API may have codes that are not listed here."""
    return CODE_MEANINGS.get(code) or f"{code.replace('_', ' ').capitalize()}."
