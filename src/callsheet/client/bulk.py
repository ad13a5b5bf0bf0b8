"""The call that submits many jobs: in requests that a server takes, and so that nothing it accepted is lost."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from callsheet.client.binding import call
from callsheet.client.errors import CallsheetError
from callsheet.client.models import NewJob, Outcome
from callsheet.client.speaking import Speaking, path, send
from callsheet.client.talk import Nap, Talk

_AWAY, _REFUSED = 503, 4
_JOBS_MAX = 1_000
_BYTES_MAX = 8 * 1024 * 1024
"""Half of what a server takes at once unless its settings say otherwise."""


class _Ready(NamedTuple):
    """A job as it is sent, and the key by which it is done once."""

    key: str
    body: msgspec.Raw


class Bulk(Speaking):
    """Submit many jobs at once."""

    @call
    def submit_many(self, jobs: Iterable[NewJob]) -> Talk[list[Outcome]]:
        """Submit any number of jobs; each has its own outcome, in order. Sent by the thousand, or by 8 MiB.

        It raises only as long as nothing was answered. What fails later is the outcome of those it is about: a
        server that is away is not asked for the rest. An outcome has its job's key, by which it is safe to repeat.
        """
        requests = iter(list(_cut(jobs)))  # all of them, before one is sent: what cannot be encoded costs nothing
        outcomes: list[Outcome] = []
        for some in requests:
            try:
                outcomes += yield from self._submitted(some)
            except CallsheetError as error:
                if not outcomes:
                    raise
                others = () if error.status // 100 == _REFUSED else chain.from_iterable(requests)
                outcomes += [_failed(job, error) for job in chain(some, others)]
        return outcomes

    def _submitted(self, jobs: list[_Ready]) -> Talk[list[Outcome]]:
        """Submit jobs in one request; those for which there was no answer are sent again, by their keys."""
        outcomes: list[Outcome] = yield from self._sent(jobs)
        for failures in range(1, self.patience.retries_max + 1):
            rest = [place for place, outcome in enumerate(outcomes) if outcome.status == _AWAY]
            if not rest:
                break
            yield Nap(self.patience.seconds(failures))
            try:
                again = yield from self._sent([jobs[place] for place in rest])
            except CallsheetError:
                break  # the others are accepted; these stay what they were
            for place, outcome in zip(rest, again, strict=True):
                outcomes[place] = outcome
        return outcomes

    def _sent(self, jobs: list[_Ready]) -> Talk[list[Outcome]]:
        request = send("POST", path("jobs", "bulk"), {"jobs": [job.body for job in jobs]}, again=True)
        found = yield from self._list(Outcome, "results", request)
        return [replace(outcome, idempotency_key=job.key) for job, outcome in zip(jobs, found, strict=True)]


def _cut(jobs: Iterable[NewJob]) -> Iterator[list[_Ready]]:
    """Cut jobs into what one request takes; one that is larger than that goes alone."""
    some: list[_Ready] = []
    size = 0
    for job in map(_ready, jobs):
        if some and (len(some) == _JOBS_MAX or size + len(job.body) > _BYTES_MAX):
            yield some
            some, size = [], 0
        some.append(job)
        size += len(job.body)
    if some:
        yield some


def _ready(job: NewJob) -> _Ready:
    key = job.idempotency_key or uuid4().hex
    return _Ready(key, msgspec.Raw(msgspec.json.encode(replace(job, idempotency_key=key))))


def _failed(job: _Ready, error: CallsheetError) -> Outcome:
    """Return what became of a job whose request failed, as the server says it of one alone."""
    said = {"code": error.code, "message": error.message, "status": error.status, "request_id": error.request_id}
    return Outcome(error.status, problem={**said, **error.details}, idempotency_key=job.key)
