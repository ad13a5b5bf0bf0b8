"""Bulk submission: split jobs into requests within the server's limits, and keep the result of every job."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from callsheet.api.jobs import NewJob
from callsheet.client.errors import CallsheetError
from callsheet.client.operation_effects import Operation, Sleep
from callsheet.client.requests_and_pages import json_request, path, send_for_list
from callsheet.client.retry import RetryContext
from callsheet.client.submit_results import BulkResult

_UNAVAILABLE, _CLIENT_ERROR = 503, 4
_JOBS_MAX = 1_000
_BYTES_MAX = 8 * 1024 * 1024
"""Half of the server's default limit for bulk requests."""


class _EncodedJob(NamedTuple):
    """An encoded job and its idempotency key."""

    key: str
    body: msgspec.Raw


def submit_in_batches(context: RetryContext, jobs: Iterable[NewJob]) -> Operation[list[BulkResult]]:
    """Submit jobs in as many requests as needed; return one result per job, in order."""
    # Encode all jobs before sending one: a job that cannot be encoded must not leave others submitted.
    requests = iter(list(_split_into_requests(jobs)))
    results: list[BulkResult] = []
    for batch in requests:
        try:
            results += yield from _submit_batch(context, batch)
        except CallsheetError as error:
            if not results:
                raise
            unsent = () if error.status // 100 == _CLIENT_ERROR else chain.from_iterable(requests)
            results += [_failed_result(job, error) for job in chain(batch, unsent)]
    return results


def _submit_batch(context: RetryContext, jobs: list[_EncodedJob]) -> Operation[list[BulkResult]]:
    """Submit jobs in one request. Jobs with the result 503 are retried with the same idempotency keys."""
    results: list[BulkResult] = yield from _send_batch(context, jobs)
    for failures in range(1, context.retry_policy.retries_max + 1):
        unavailable = [index for index, result in enumerate(results) if result.status == _UNAVAILABLE]
        if not unavailable:
            break
        yield Sleep(context.retry_policy.delay_seconds(failures))
        try:
            retried = yield from _send_batch(context, [jobs[index] for index in unavailable])
        except CallsheetError:
            break  # the other jobs are accepted; these keep their 503
        for index, result in zip(unavailable, retried, strict=True):
            results[index] = result
    return results


def _send_batch(context: RetryContext, jobs: list[_EncodedJob]) -> Operation[list[BulkResult]]:
    request = json_request("POST", path("jobs", "bulk"), {"jobs": [job.body for job in jobs]}, idempotent=True)
    results = yield from send_for_list(context, BulkResult, "results", request)
    return [replace(result, idempotency_key=job.key) for job, result in zip(jobs, results, strict=True)]


def _split_into_requests(jobs: Iterable[NewJob]) -> Iterator[list[_EncodedJob]]:
    """Split jobs into requests of limited count and size; a job above the size limit gets its own request."""
    batch: list[_EncodedJob] = []
    size = 0
    for job in map(_encode, jobs):
        if batch and (len(batch) == _JOBS_MAX or size + len(job.body) > _BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += len(job.body)
    if batch:
        yield batch


def _encode(job: NewJob) -> _EncodedJob:
    key = job.idempotency_key or uuid4().hex
    return _EncodedJob(key, msgspec.Raw(msgspec.json.encode(replace(job, idempotency_key=key))))


def _failed_result(job: _EncodedJob, error: CallsheetError) -> BulkResult:
    """Return the result of a job whose request failed, in the server's format."""
    fields = {"code": error.code, "message": error.message, "status": error.status, "request_id": error.request_id}
    return BulkResult(error.status, problem={**fields, **error.details}, idempotency_key=job.key)
