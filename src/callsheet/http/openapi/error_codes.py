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
    "body_timeout": "The body did not arrive in time. The server closes the connection. Send the request again.",
    "body_too_large": "The body is larger than the limit of this route. The server closes the connection. Send less.",
    "cancel_requested": "The job is being canceled and cannot be paused. Wait until it has ended.",
    "cannot_revoke_own_key": "A key cannot revoke itself. Use another admin key.",
    "capabilities_too_deep": "The worker's capabilities are nested deeper than 64 levels. Send a flatter object.",
    "capabilities_too_large": "The worker's capabilities are larger than `metadata_bytes_max` bytes. Send fewer of "
    "them.",
    "database_unusable": "The database accepts no writes: its disk is full or read-only, or rights are missing. The "
    "message says what an operator must do. Retry after `Retry-After` seconds, with the same idempotency key.",
    "digest_mismatch": "The SHA-256 of the bytes differs from the declared one. Upload the right bytes again.",
    "file_deleted": "A file from an earlier stage of the job was deleted. Retry as a new job (`retry_as`).",
    "file_gone": "The file was deleted, its retention period has ended, or the attempt of an upload has ended. It "
    "cannot be restored.",
    "file_in_use": "A job that has not ended, or a workflow, uses the file. Delete it when the job has ended.",
    "file_not_finished": "The file is still `uploading`. Upload its bytes and call finish first.",
    "file_not_found": "The file does not exist, or belongs to another tenant or user.",
    "file_not_uploaded": "The file has no bytes yet. Upload them to `upload.url`, then repeat the request.",
    "file_too_large": "The file exceeds the limit of the storage for a single upload. Upload a smaller file.",
    "fleet_full": "The limit of `workers_max` registered workers is reached. Wait until a worker deregisters, or "
    "raise the limit. The response contains the count and the limit.",
    "forbidden": "The role of the key does not allow this. Use a key with one of the roles of the route.",
    "headers_too_large": "The request line and headers are larger than `header_bytes_max` bytes, or there are more "
    "than `headers_max` headers. The server closes the connection. Send fewer headers.",
    "host_not_allowed": "The server does not answer to the host of the URL. Use an address of the server, or add the "
    "host to `allowed_hosts`.",
    "idempotency_key_conflict": "The body and the Idempotency-Key header contain different keys. Send only one.",
    "idempotency_key_reused": "The idempotency key was used before with another body or amount. Send the original "
    "request, or a new key.",
    "illegal_transition": "The current status does not allow this action. The message names the statuses that do; the "
    "response contains the current and the requested status.",
    "input_too_deep": "The input is nested deeper than `input_depth_max` levels. Send a flatter input.",
    "input_too_large": "The input has more than `input_bytes_max` bytes as JSON, more than `input_items_max` items in "
    "a list or object, a field name longer than `key_chars_max`, or would take more than `validation_steps_max` "
    "steps to validate. Upload large values as files, or send a less nested input.",
    "insufficient_credits": "The balance is lower than the price or the deducted amount. Top up the wallet. The "
    "response contains both numbers.",
    "internal_error": "The server failed unexpectedly. Search its log for the request id.",
    "invalid_body": "A field of the JSON body is missing, unknown or has the wrong type. The message names the field.",
    "invalid_cursor": "The cursor or Last-Event-ID is invalid. Pass `next` of the previous page, or start without a "
    "cursor.",
    "invalid_definition": "A field of the definition is unknown or has the wrong type. The message names the field.",
    "invalid_file": "The name, media type or SHA-256 of a file is invalid, or a task's files are not numbered in "
    "order. The message says which.",
    "invalid_graph": "The stage's ComfyUI graph is invalid, or a job contains a graph. The message names the node and "
    "the field.",
    "invalid_idempotency_key": "The idempotency key is invalid. Send 1 to `key_chars_max` printable characters.",
    "invalid_input": "The input is not JSON, or does not match the workflow's input schema or graph. The message "
    "names the field.",
    "invalid_json": "The body is not valid JSON, is nested too deep, or repeats a key in an object. Send valid JSON.",
    "invalid_key": "The key is unknown, expired or revoked, or was not sent as `Authorization: Bearer`.",
    "invalid_key_name": "The name of the key is invalid. Send 1 to `name_chars_max` printable characters.",
    "invalid_kind": "The kind is not a valid name. Use letters, digits and `. _ : -`, starting with a letter or "
    "digit, at most `name_chars_max` characters.",
    "invalid_label": "A label has an empty name, or a name or value longer than `label_chars_max` characters. Shorten "
    "it.",
    "invalid_provider": "The provider is missing, or its name is not valid. The message says what is allowed.",
    "invalid_query": "A query parameter is unknown, repeated, out of range or of the wrong type. The message names it.",
    "invalid_quote": "The quote was created for another workflow, user or input. Create a new quote.",
    "invalid_rate": "The rate is not valid. Write a number per `second`, `minute`, `hour` or `day`, such as "
    "`60/minute`.",
    "invalid_ref": "The provider's job id is invalid. Send 1 to `key_chars_max` printable characters.",
    "invalid_request": "The request is not valid HTTP/1.1, or its Host header is missing or invalid. The server closes "
    "the connection. Check your HTTP client.",
    "invalid_signature": "The signed URL was changed, or was created for another method. Request a new URL.",
    "invalid_stage": "The name of a stage is used twice or is not valid. Use letters, digits and `. _ : -`, starting "
    "with a letter or digit, at most `name_chars_max` characters.",
    "invalid_tenant": "The tenant's name is not valid. Use letters, digits and `. _ : -`, starting with a letter or "
    "digit, at most `name_chars_max` characters.",
    "invalid_text": "A text contains a NUL character or an unpaired surrogate, which cannot be stored. Remove it.",
    "invalid_user": "The user id is invalid. Send 1 to `key_chars_max` printable characters.",
    "invalid_worker": "The worker's name is not valid. Use letters, digits and `. _ : -`, starting with a letter or "
    "digit, at most `name_chars_max` characters.",
    "invalid_worker_token": "The worker's token is unknown, expired or revoked. Register again.",
    "invalid_workflow": "The definition's name, stages or input schema are invalid. The message says which.",
    "job_deleted": "The job that was created with this idempotency key has been deleted. Use a new key.",
    "job_ended": "The job has ended: its priority cannot change, and no stage can be added. Submit another job.",
    "job_not_found": "The job does not exist, was deleted, or belongs to another tenant or user.",
    "key_in_url": "The URL contains an API key. Send it in the Authorization header. Only user tokens may be in "
    "`?token`, on the routes that document it.",
    "key_not_found": "The key does not exist, or belongs to another tenant.",
    "kind_not_assigned": "The worker is no longer assigned to all requested kinds. Claim again.",
    "kind_not_offered": "The worker did not register the assigned kind. Assign only kinds that it offers.",
    "lease_lost": "The lease has ended: it expired, or the job was stopped. Stop working on the task.",
    "lease_not_found": "The lease does not exist, or belongs to another worker. Stop working on the task.",
    "length_required": "The request has no Content-Length header. Send it.",
    "metadata_too_deep": "The metadata is nested deeper than 64 levels. Send a flatter object.",
    "metadata_too_large": "The metadata is larger than `metadata_bytes_max` bytes. Send less.",
    "method_not_allowed": "This path does not support the method. `Allow` lists the supported methods.",
    "missing_key": "The request has no key. Send `Authorization: Bearer` and your key.",
    "not_ready": "The database does not answer or accepts no writes, or the signing secret or the file storage is not "
    "the one of the database. The message says which. Do not route requests to this server until `/readyz` returns "
    "200.",
    "nothing_to_refund": "The run consumed no credits: its whole price was refunded when it ended. There is nothing "
    "to do.",
    "out_of_range": "A number is outside its allowed range. The message names the field and the range.",
    "output_too_deep": "The output is nested deeper than 64 levels. Return a flatter value, or upload it as a file.",
    "output_too_large": "The output is larger than `output_bytes_max` bytes as JSON. Upload it as a file instead.",
    "overloaded": "The server has more work than it can do. It has not started the request, and nothing was changed. "
    "Retry after `Retry-After` seconds.",
    "preview_not_found": "The task has not uploaded a preview image. Ask again after the next `task.progressed` event.",
    "previous_stage_open": "The previous stage is not completed yet. Approve this stage afterwards.",
    "price_is_fixed": "The price of the workflow covers only its own tasks, so its jobs cannot get more. Submit "
    "another job.",
    "quote_expired": "The quote has expired. Create a new quote.",
    "range_not_satisfiable": "The requested range is outside the file. `Content-Range` contains the file's size.",
    "reason_required": "The `reason` is empty. Send a reason for the requeue, adjustment or refund.",
    "route_not_found": "No route has this path. Check the path and its prefix `/v1`.",
    "run_not_ended": "The run has not ended, so its cost is not final. Refund it when it has ended.",
    "run_not_found": "The job has no run with this number. List its runs.",
    "schema_too_large": "The input schema of the workflow has more than `schema_values_max` values, its patterns "
    "have a size above `schema_patterns_size_max`, or its references multiply to more than `validation_steps_max` "
    "steps. Shorten it, or check long lists in a gate.",
    "secret_in_use": "Another key has the same secret. Create the key again with a new secret.",
    "size_mismatch": "The number of bytes differs from the declared size. Upload the right bytes again.",
    "stage_ended": "The stage or its job has ended, so it cannot get more tasks. Submit another job.",
    "stage_not_found": "The job has no stage with this number or name.",
    "stages_not_allowed": "Only workflows with `inline = true` let a job define or add stages. Leave out `stages`.",
    "stopping": "The server is shutting down. Retry after `Retry-After` seconds.",
    "storage_full": "The file storage is full, and the upload was discarded. Upload the file again when there is "
    "space.",
    "storage_quota_exceeded": "The tenant or the job has used up a limit of bytes, which `limit` names. Delete files, "
    "or ask the operator for a higher limit.",
    "storage_unavailable": "The file storage does not answer. Retry after `Retry-After` seconds.",
    "target_too_long": "The URL is longer than `url_bytes_max` bytes. Shorten its query.",
    "task_not_found": "The job has no task with this id.",
    "tenant_not_allowed": "Workers serve all tenants. Create the fleet secret without `tenant`.",
    "tenant_not_found": "The tenant does not exist. An operator can create it.",
    "tenant_required": "Only operator keys and fleet secrets have no tenant. Send `tenant`.",
    "tenant_suspended": "The tenant is suspended: its keys can read, but change nothing. An operator can activate it.",
    "too_many_active_jobs": "The user has reached the limit of active jobs. Retry when one has ended. The response "
    "contains the count and the limit.",
    "too_many_commands": "The request contains more than `bulk_items_max` items. Split it.",
    "too_many_connections": "Your IP address has `connections_per_address_max` open connections. Close some, then "
    "retry after `Retry-After` seconds.",
    "too_many_failed_auth": "Too many requests with an invalid key came from this IP address. Retry after "
    "`Retry-After` seconds.",
    "too_many_heartbeats": "The worker exceeds `heartbeats_per_second_max`. Retry after `Retry-After` seconds.",
    "too_many_labels": "There are more than `labels_max` labels. Send fewer.",
    "too_many_pending_bytes": "Unfinished uploads and running tasks of the tenant have announced `pending_bytes_max` "
    "bytes. Finish or delete an upload, then retry.",
    "too_many_queues": "Inline stages of this workflow's jobs already use `queues_per_workflow_max` pairs of kind and "
    "provider. Use one of these pairs.",
    "too_many_stages": "The job would have more than `stages_per_job_max` stages. Use fewer stages.",
    "too_many_streams": "The server, key or user has too many open event streams. Close some of them.",
    "too_many_tasks": "The request has no tasks, or the stage would have more than `tasks_per_stage_max`. The message "
    "says how many you can add.",
    "too_many_uploads": "The user has `uploads_pending_max` unfinished uploads. Finish or delete some of them first.",
    "trace_too_large": "The trace context is larger than `metadata_bytes_max` bytes. Send less.",
    "type_mismatch": "The content or its Content-Type differs from the declared media type. Create an upload with "
    "the right type.",
    "unavailable": "The database does not answer, or the server has no free file handles. Retry after `Retry-After` "
    "seconds, with the same idempotency key.",
    "unsupported_encoding": "The body is compressed. Send it without Content-Encoding.",
    "unsupported_media_type": "The body is not declared as JSON. Send `Content-Type: application/json`.",
    "upload_in_progress": "Another request uploads the same file. Retry when it has ended.",
    "url_expired": "The signed URL has expired. Request a new one.",
    "worker_ended": "The worker is offline or revoked and has no token. Register it again.",
    "worker_full": "The worker already holds as many tasks as its `concurrency` allows. Finish one before you claim "
    "more.",
    "worker_not_approved": "The worker is waiting for an operator's approval. Claim again later.",
    "worker_not_found": "The worker does not exist.",
    "worker_rejected": "The worker verification service (`worker_verify_url`) rejected the worker. Check its rules.",
    "worker_revoked": "The worker was revoked. An operator must approve it before it can register again.",
    "worker_verification_unavailable": "The worker verification service does not answer. Register again after "
    "`Retry-After` seconds.",
    "workflow_disabled": "The workflow is disabled and accepts no jobs. Use another workflow, or ask an operator to "
    "enable it.",
    "workflow_not_found": "The workflow does not exist. Check its name, or list the workflows.",
}


def describe_code(code: str) -> str:
    """Return what a code means. A plugin's API may have codes that are not listed here."""
    return CODE_MEANINGS.get(code) or f"{code.replace('_', ' ').capitalize()}."
