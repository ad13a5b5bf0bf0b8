"""The demonstration, seen from outside: submits jobs over the API, shows how they come along, fetches the files."""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from threading import Thread

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from callsheet.catalog import load
from callsheet.client import CallsheetError, Client, Event, File, Job
from callsheet.core.counting import counted
from callsheet.demo.board import Board, Line
from callsheet.demo.furnish import CREDITS, USER, WORKFLOWS

PROMPTS = {
    "sketch": "a lighthouse in the fog",
    "tone": "an old piano at dusk",
    "clip": "the sea at sunset",
    "short-video": "a letter crosses the mountains",
}

_LABEL = "demonstration"
_NOT_HERE = "This server has no demonstration workflows: start it with `callsheet up` (without --no-demo)."
_LOOK_SECONDS = 0.25
"""How often whoever waits for jobs looks whether to stop."""
_QUIET_SECONDS = 3.0
"""A job of which nothing was heard for so long is asked what holds it."""
_LAST_SECONDS = 5.0
"""How long a board waits for the last word about what was canceled."""
_USUAL = frozenset({"ended", "queued", "running"})


class Made(Struct, frozen=True):
    """A file that was fetched, and what it cost."""

    job: Job
    file: File
    path: Path


class Shown(Struct, frozen=True):
    """How the demonstration ended."""

    jobs: list[Job]
    made: list[Made]

    @property
    def completed(self) -> bool:
        return all(job.completed for job in self.jobs)


def show(url: str, key: str, folder: Path, console: Console, interrupted: Callable[[], bool] = lambda: False) -> Shown:
    """Run the demonstration; one that is interrupted leaves nothing behind that waits and holds credits.

    An interrupt can be raised where nobody sees it; whoever heard it says so with `interrupted`.
    """
    with Client(url, key) as client:
        _pay(client, console, _price(client))
        mark = secrets.token_hex(4)
        try:
            jobs = _followed(client, Board(console), mark, interrupted)
        except KeyboardInterrupt:
            console.print("\nInterrupted: what had not ended is canceled.")
            for job in client.jobs(label=f"{_LABEL}={mark}"):
                if not job.ended:
                    console.print(f"{job.workflow} goes on: callsheet watch {job.id}", soft_wrap=True)
            raise
        made = [one for job in jobs if job.completed for one in _fetched(client, job, folder)]
        _tell(client, console, jobs, made, folder)
        return Shown(jobs, made)


def _followed(client: Client, board: Board, mark: str, interrupted: Callable[[], bool]) -> list[Job]:
    """Submit the jobs, with a mark by which they are found again, and follow them to their ends."""
    follow: list[_Follower] = []
    with board:
        try:
            for workflow, prompt in PROMPTS.items():
                job = client.submit(workflow, user=USER, input={"prompt": prompt}, labels={_LABEL: mark})
                follow.append(_Follower(client, board, job))
            return _ends(follow, interrupted)
        except KeyboardInterrupt:
            _cancel(client, mark)
            wait([follower.done for follower in follow], _LAST_SECONDS)
            raise


def _ends(follow: Sequence["_Follower"], interrupted: Callable[[], bool]) -> list[Job]:
    """Wait for the jobs' ends. Whoever stops waiting leaves nothing behind that keeps the process alive."""
    while True:
        done, rest = wait([follower.done for follower in follow], _LOOK_SECONDS)
        for one in done:
            one.result()  # what went wrong with one is the end of all
        if not rest:
            return [follower.done.result() for follower in follow]
        if interrupted():
            raise KeyboardInterrupt
        for follower in follow:
            follower.look()


def _cancel(client: Client, mark: str) -> None:
    """Cancel what has not ended, also what was submitted while nobody waited for the answer any more."""
    for job in list(client.jobs(label=f"{_LABEL}={mark}")):
        if not job.ended:
            with suppress(CallsheetError):  # it ended in the meantime
                client.cancel(job.id, reason="the demonstration was interrupted", grace_seconds=0)


def _price(client: Client) -> int:
    """Return what the jobs cost here; a workflow of somebody else's that has the name of one of ours is left alone."""
    price = 0
    for ours in load(WORKFLOWS):
        try:
            found = client.workflow(ours.name)
        except CallsheetError as error:
            if error.code != "workflow_not_found":
                raise
            raise CallsheetError("no_demonstration", _NOT_HERE) from None
        if [stage.get("kind") for stage in found.recipe["stages"]] != [stage.kind for stage in ours.stages]:
            said = f"The workflow {ours.name} of this server is not the demonstration's: show it on another --data."
            raise CallsheetError("no_demonstration", said)
        price += found.price
    return price


def _pay(client: Client, console: Console, price: int) -> None:
    """See that the user can pay; a house in which the demonstration was run often is topped up."""
    balance = client.wallet(USER).balance
    if balance < price:
        balance = client.topup(USER, CREDITS, reason="for the demonstration").balance
        console.print(f"The user [bold]{USER}[/] got {counted(CREDITS, 'more credit')}.")
    console.print(f"The user [bold]{USER}[/] has {counted(balance, 'credit')}; these four jobs cost {price}.\n")


class _Follower:
    """Follows one job to its end, and puts on the board what happens to it."""

    def __init__(self, client: Client, board: Board, job: Job) -> None:
        self._client = client
        self._board = board
        self._job = job
        stages = {stage.id: stage for stage in client.stages(job.id)}
        tasks = list(client.tasks(job.id))
        self._gates = {stage.id: stage for stage in stages.values() if stage.gate}
        self._lines: dict[str, Line] = {}
        alone = len(tasks) == 1
        prompt = PROMPTS[job.workflow]
        self._head = board.add(job.workflow, f"“{prompt}”")
        for task in tasks:
            stage = stages[task.stage_id]
            name = stage.name if stage.tasks_total == 1 else f"{stage.name} {task.no}"
            self._lines[task.id] = self._head if alone else board.add(f"  {name}", "", of=job.workflow)
        self._waiting = {
            stage_id: next(self._lines[task.id] for task in tasks if task.stage_id == stage_id)
            for stage_id in self._gates
        }
        self._heard = time.monotonic()
        self.done: Future[Job] = Future()
        Thread(target=self._run, name=f"demo-{job.workflow}", daemon=True).start()

    def look(self) -> None:
        """Say what holds the job, if nothing has happened to it for a while and that is not the usual course."""
        if self.done.done() or time.monotonic() - self._heard < _QUIET_SECONDS:
            return
        self._heard = time.monotonic()
        with suppress(CallsheetError):  # the next look may tell
            holding = {one.code: one.message for one in self._client.why(self._job.id).constraints}
            unusual = [message for code, message in holding.items() if code not in _USUAL]
            if unusual and "running" not in holding:
                self._head.hold(" ".join(unusual))

    def _run(self) -> None:
        try:
            self.done.set_result(self._follow())
        except BaseException as error:  # noqa: BLE001 - raised where the end is waited for
            self.done.set_exception(error)

    def _follow(self) -> Job:
        for event in self._client.events(self._job.id):
            self._heard = time.monotonic()
            self._see(event)
        job = self._client.get(self._job.id)
        self._head.end(job.status, job.error.message if job.error and job.status != "canceled" else "")
        for task in self._client.tasks(self._job.id):
            self._lines[task.id].end(task.status, "")
        return job

    def _see(self, event: Event) -> None:
        line = self._lines.get(event.entity_id or "")
        if line is not None:
            self._see_task(line, event)
        elif event.type == "stage.waiting" and event.entity_id in self._gates:
            self._approve(event.entity_id)
        elif event.type == "job.started":
            self._head.update(self._head.percent, "running")
        elif event.type == "stage.completed":
            self._head.update(self._client.get(self._job.id).progress, self._head.word)

    def _see_task(self, line: Line, event: Event) -> None:
        said = event.data or {}
        if event.type == "task.leased":
            line.update(0, "begins" if said.get("attempt") == 1 else f"try {said.get('attempt')}")
        elif event.type == "task.progressed":
            line.update(said["progress"], said.get("message") or "")
            if said.get("preview"):
                self._picture(line, event.entity_id or "")
        elif event.type == "task.completed":
            line.end("completed", "")
            self._finished(line, event.entity_id or "")
        elif event.type in {"task.retried", "task.failed"}:
            line.update(0, said.get("message") or event.type)

    def _approve(self, stage_id: str) -> None:
        """Play the person who looks at the storyboard."""
        line = self._waiting[stage_id]
        line.update(0, "waits for approval")
        self._client.approve(self._job.id, self._gates[stage_id].no, approver="the audience")
        line.remark("approved in your name")

    def _picture(self, line: Line, task_id: str) -> None:
        if self._board.draws:
            with suppress(CallsheetError):  # the task has ended, and its preview with it
                line.show(self._client.preview(self._job.id, task_id), "image/png")

    def _finished(self, line: Line, task_id: str) -> None:
        if self._board.draws:
            for output in self._client.outputs(self._job.id):
                for file in output.files:
                    if output.task_id == task_id and not file.media_type.startswith("text/"):
                        line.show(self._client.read(file), file.media_type)


# -- the end


def _fetched(client: Client, job: Job, folder: Path) -> list[Made]:
    """Fetch what the last stage of a job made."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = list(client.outputs(job.id))
    last = max(output.stage_no for output in outputs)
    return [
        Made(job, file, client.download(file, folder / f"{job.id[-6:]}-{Path(file.name).name}"))
        for output in outputs
        if output.stage_no == last
        for file in output.files
    ]


def _tell(client: Client, console: Console, jobs: Sequence[Job], made: Sequence[Made], folder: Path) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head in ("made", "for", "file", "size"):
        table.add_column(head, justify="right" if head == "size" else "left", no_wrap=head != "file")
    for one in made:
        price, size = counted(one.job.price, "credit"), f"{one.file.bytes / 1000:,.0f} kB"
        table.add_row(one.job.workflow, price, one.path.name, size)
    console.print()
    console.print(table)
    console.print(f"\nThe files are in [bold]{escape(str(folder))}[/].")
    for job in jobs:
        if job.error:
            console.print(f"[red]{job.workflow} {job.status}[/]: {escape(job.error.message)}")
    wallet = client.wallet(USER)
    held = f", and {wallet.held} held for jobs under way" if wallet.held else ""
    console.print(f"The wallet has {counted(wallet.balance, 'credit')} left{held}.")
