"""What workers and the house say to each other over HTTP: one struct per message, the same on both sides.

Workers only ever call; the house never opens a connection to one. Nothing here names a tenant or an object key:
a worker gets the input of its task, and addresses that are good for one file and one lease.
"""

from typing import Any

from msgspec import Raw, Struct

from callsheet.core.comfy import Rendered
from callsheet.core.commands import Json, Lease, Made, Resumed


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker says; a field that nobody knows is refused."""


# -- coming and going


class Register(Message, frozen=True):
    """Come to work, under the fleet's secret. The same name again is a restart: what it held is given back."""

    worker: str
    kinds: list[str]
    concurrency: int = 1
    capabilities: dict[str, Json] | None = None
    labels: dict[str, str] | None = None


class Registered(Struct, frozen=True):
    """The worker's own token, shown once, and the pace of the house."""

    worker: str
    token: str
    kinds: list[str]
    """What it may take; an operator may have assigned less than it offers."""
    approved: bool
    beat_seconds: float
    """Every lease is to be heard of at least this often."""
    wait_seconds_max: float
    """The longest that a claim may wait."""


class Deregister(Message, frozen=True):
    """Go away: what is still in hand is given back."""

    reason: str = ""


class Gone(Struct, frozen=True):
    """How many tasks were given back."""

    requeued: int


# -- files


class Grant(Struct, frozen=True):
    """Leave to send one request, for a while. An address that begins with / is the house's own."""

    method: str
    url: str
    headers: dict[str, str]
    seconds: int


class Given(Struct, frozen=True):
    """A file to read: one of the task's input, or of an earlier stage."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    get: Grant


class Granted(Struct, frozen=True):
    """Leave to put one file that the task made."""

    no: int
    put: Grant


class Files(Message, frozen=True):
    """Ask for addresses: to read files of the task, to put what it made, to put a preview."""

    lease: Lease
    gets: list[str] = []
    puts: list[Made] = []
    preview: bool = False


class Grants(Struct, frozen=True):
    """The addresses."""

    gets: list[Given] = []
    puts: list[Granted] = []
    preview: Grant | None = None


# -- work


class Claim(Message, frozen=True):
    """Take up to `count` tasks, of these kinds or of all that are assigned; wait for some if there are none."""

    count: int = 1
    kinds: list[str] | None = None
    wait_seconds: float = 0.0
    holds: list[str] | None = None
    """The tasks in hand, by id. What the house leased to this worker besides, it never heard of: that is given back."""


class Work(Struct, frozen=True):
    """A task in hand."""

    lease: Lease
    kind: str
    workflow: str
    stage: str
    stage_no: int
    task_no: int
    lease_seconds: int
    input: Raw
    files: list[Given]
    """The files that the input refers to."""
    comfyui: Rendered | None = None
    """A ComfyUI graph with everything filled in but its files."""
    resumed: Resumed | None = None
    trace: dict[str, str] | None = None


class Claimed(Struct, frozen=True):
    """Tasks, or none; `drain` asks the worker to finish what it holds and go."""

    tasks: list[Work]
    drain: bool


class Earlier(Struct, frozen=True):
    """What a completed task of an earlier stage of the same job made."""

    stage: str
    stage_no: int
    task_no: int
    output: Any
    files: list[Given]


class Told(Struct, frozen=True):
    """The last task that was told of: what comes behind it is not told yet."""

    stage_no: int
    task_no: int


class Before(Message, frozen=True):
    """Ask what earlier stages made; behind a task, if some was told before."""

    lease: Lease
    after: Told | None = None


class EarlierStages(Struct, frozen=True):
    """Completed tasks of earlier stages, in order, and where to go on."""

    tasks: list[Earlier]
    next: Told | None = None


# -- while it runs


class Beat(Message, frozen=True):
    """Prolong one lease, and say how far the work is."""

    lease: Lease
    lease_seconds: int | None = None
    progress: int | None = None
    message: str | None = None
    log: list[str] = []
    preview: int = 0
    gets: list[str] = []
    puts: list[Made] = []


class Heartbeat(Message, frozen=True):
    """Prolong several leases in one call."""

    beats: list[Beat]


class Refused(Struct, frozen=True):
    """Why one of several was refused."""

    code: str
    message: str


class Beaten(Struct, frozen=True):
    """The answer for one lease, in the order of the question: how long it lasts, whether to stop, fresh addresses."""

    task_id: str
    lease_seconds: float = 0.0
    cancel: bool = False
    refused: Refused | None = None
    grants: Grants | None = None
    ungranted: Refused | None = None
    """Why there are no fresh addresses, if some were asked for; the lease is prolonged all the same."""


class Heartbeaten(Struct, frozen=True):
    """The answers, and whether the worker is to finish what it holds and go."""

    beats: list[Beaten]
    drain: bool


class Submitted(Message, frozen=True):
    """Write down that the work is at somebody else's machine, under this reference; sent before it is."""

    lease: Lease
    provider: str
    ref: str


# -- the end of a try


class Complete(Message, frozen=True):
    """Hand in a result; its files have been put."""

    lease: Lease
    output: Json = None
    files: list[Made] = []
    delivered: int = 100


class Fail(Message, frozen=True):
    """Report that a try went wrong; `code` is its class."""

    lease: Lease
    code: str = "task_failed"
    message: str = ""
    retryable: bool | None = None
    resume: bool = False
    """What was submitted is still good: the next try is told where it lies and goes on with it."""


class Requeue(Message, frozen=True):
    """Give a task back without using up a try: the machine goes away, the work is sound."""

    lease: Lease
    reason: str
    cause: str = "requeued"
    """In a word: `spot` for a machine that is taken away, `shutdown`, or another."""


class Reported(Struct, frozen=True):
    """Where the task and its job are now; `skipped` says why the report had no effect."""

    task_id: str
    status: str
    job_status: str
    skipped: str | None = None
    replay: bool = False
