"""The call that submits many jobs: in requests that a server takes, and so that nothing it accepted is lost."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from callsheet.client.errors import CallsheetError
from callsheet.client.method_binding import call
from callsheet.client.models import BulkResult, NewJob
from callsheet.client.operations import Operation, Sleep
from callsheet.client.resource import Resource, json_request, path

_UNAVAILABLE, _CLIENT_ERROR = 503, 4
_JOBS_MAX = 1_000
_BYTES_MAX = 8 * 1024 * 1024
"""Half of what a server takes at once unless its settings say otherwise."""


class _EncodedJob(NamedTuple):
    """A job as it is sent, and the key by which it is done once."""

    key: str
    body: msgspec.Raw


class Bulk(Resource):
    """Submit many jobs at once."""

    @call
    def submit_many(self, jobs: Iterable[NewJob]) -> Operation[list[BulkResult]]:
        """Submit any number of jobs; each has its own outcome, in order. Sent by the thousand, or by 8 MiB.

        It raises only as long as nothing was answered. What fails later is the outcome of those it is about: a
        server that is away is not asked for the rest. An outcome has its job's key, by which it is safe to repeat.
        """
        requests = iter(
            list(_split_into_requests(jobs))
        )  # all of them, before one is sent: what cannot be encoded costs nothing
        outcomes: list[BulkResult] = []
        for batch in requests:
            try:
                outcomes += yield from self._submit_batch(batch)
            except CallsheetError as error:
                if not outcomes:
                    raise
                unsent = () if error.status // 100 == _CLIENT_ERROR else chain.from_iterable(requests)
                outcomes += [_failed_result(job, error) for job in chain(batch, unsent)]
        return outcomes

    def _submit_batch(self, jobs: list[_EncodedJob]) -> Operation[list[BulkResult]]:
        """Submit jobs in one request; those for which there was no answer are sent again, by their keys."""
        outcomes: list[BulkResult] = yield from self._send_batch(jobs)
        for failures in range(1, self.retry_policy.retries_max + 1):
            unavailable = [index for index, outcome in enumerate(outcomes) if outcome.status == _UNAVAILABLE]
            if not unavailable:
                break
            yield Sleep(self.retry_policy.delay_seconds(failures))
            try:
                idempotent = yield from self._send_batch([jobs[index] for index in unavailable])
            except CallsheetError:
                break  # the others are accepted; these stay what they were
            for index, outcome in zip(unavailable, idempotent, strict=True):
                outcomes[index] = outcome
        return outcomes

    def _send_batch(self, jobs: list[_EncodedJob]) -> Operation[list[BulkResult]]:
        request = json_request("POST", path("jobs", "bulk"), {"jobs": [job.body for job in jobs]}, idempotent=True)
        results = yield from self._request_list(BulkResult, "results", request)
        return [replace(outcome, idempotency_key=job.key) for job, outcome in zip(jobs, results, strict=True)]


def _split_into_requests(jobs: Iterable[NewJob]) -> Iterator[list[_EncodedJob]]:
    """Cut jobs into what one request takes; one that is larger than that goes alone."""
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
    """Return what became of a job whose request failed, as the server says it of one alone."""
    fields = {"code": error.code, "message": error.message, "status": error.status, "request_id": error.request_id}
    return BulkResult(error.status, problem={**fields, **error.details}, idempotency_key=job.key)
