"""Run the demo as an API client: submit jobs, show their progress, approve a stage and download the files."""

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
from callsheet.client.file_transfer.download import safe_name
from callsheet.core.model.plural import pluralize
from callsheet.core.model.terminal_text import sanitize
from callsheet.demo.progress_board import Board, Line
from callsheet.demo.setup import CREDITS, USER, WORKFLOWS

PROMPTS = {
    "sketch": "a lighthouse in the fog",
    "tone": "an old piano at dusk",
    "clip": "the sea at sunset",
    "short-video": "a letter crosses the mountains",
}

_LABEL = "demonstration"
_WORKFLOWS_MISSING = "This server has no demo workflows. Start it with `callsheet up`, without --no-demo-workflows."
_POLL_SECONDS = 0.25
"""Polling interval of the check for an interrupt."""
_QUIET_SECONDS = 3.0
"""After this long without an event, query what blocks the job."""
_CANCEL_WAIT_SECONDS = 5.0
"""How long an interrupted demo waits for its jobs to be canceled."""
_EXPECTED_CODES = frozenset({"ended", "queued", "running"})


class DownloadedFile(Struct, frozen=True):
    """A downloaded file, and the job that created it."""

    job: Job
    file: File
    path: Path


class DemoResult(Struct, frozen=True):
    """The jobs and downloaded files of the demo."""

    jobs: list[Job]
    files: list[DownloadedFile]

    @property
    def completed(self) -> bool:
        return all(job.completed for job in self.jobs)


def show(
    url: str, key: str, folder: Path, console: Console, interrupted: Callable[[], bool] = lambda: False
) -> DemoResult:
    """Run the demo. If it is interrupted, its unfinished jobs are canceled, which refunds their credits.

    `interrupted` returns whether an interrupt was requested, for signals that another thread handles.
    """
    with Client(url, key) as client:
        _ensure_credits(client, console, _total_price(client))
        run_label = secrets.token_hex(4)
        try:
            jobs = _run_jobs(client, Board(console), run_label, interrupted)
        except KeyboardInterrupt:
            console.print("\nInterrupted. Unfinished jobs are canceled.")
            for job in client.jobs.list(label=f"{_LABEL}={run_label}"):
                if not job.ended:
                    console.print(
                        sanitize(f"{job.workflow} keeps running. Follow it with: callsheet watch {job.id}"),
                        markup=False, soft_wrap=True,
                    )  # fmt: skip
            raise
        files = [file for job in jobs if job.completed for file in _download_outputs(client, job, folder)]
        _print_summary(client, console, jobs, files, folder)
        return DemoResult(jobs, files)


def _run_jobs(client: Client, board: Board, run_label: str, interrupted: Callable[[], bool]) -> list[Job]:
    """Submit the jobs, with a label to find them again, and follow them until they have ended."""
    followers: list[_Follower] = []
    with board:
        try:
            for workflow, prompt in PROMPTS.items():
                job = client.jobs.submit(workflow, user=USER, input={"prompt": prompt}, labels={_LABEL: run_label})
                followers.append(_Follower(client, board, job))
            return _wait_for_jobs(followers, interrupted)
        except KeyboardInterrupt:
            _cancel(client, run_label)
            wait([follower.done for follower in followers], _CANCEL_WAIT_SECONDS)
            raise


def _wait_for_jobs(followers: Sequence["_Follower"], interrupted: Callable[[], bool]) -> list[Job]:
    """Wait until the jobs have ended. An interrupted wait leaves no thread that keeps the process alive."""
    while True:
        done, pending = wait([follower.done for follower in followers], _POLL_SECONDS)
        for future in done:
            future.result()  # an error of one job ends the demo
        if not pending:
            return [follower.done.result() for follower in followers]
        if interrupted():
            raise KeyboardInterrupt
        for follower in followers:
            follower.report_blocked()


def _cancel(client: Client, run_label: str) -> None:
    """Cancel jobs that have not ended, including those whose submit had no response yet."""
    for job in list(client.jobs.list(label=f"{_LABEL}={run_label}")):
        if not job.ended:
            with suppress(CallsheetError):  # it ended in the meantime
                client.jobs.cancel(job.id, reason="the demo was interrupted", grace_seconds=0)


def _total_price(client: Client) -> int:
    """Return the price of the jobs. Fails if a workflow has a demo name but another definition."""
    price = 0
    for demo_workflow in load(WORKFLOWS):
        try:
            workflow = client.workflows.get(demo_workflow.name)
        except CallsheetError as error:
            if error.code != "workflow_not_found":
                raise
            raise CallsheetError("demo_workflows_missing", _WORKFLOWS_MISSING) from None
        if [stage.get("kind") for stage in workflow.definition["stages"]] != [
            stage.kind for stage in demo_workflow.stages
        ]:
            details = f"The workflow {demo_workflow.name} of this server is not the demo's. Use another --data-dir."
            raise CallsheetError("demo_workflows_missing", details)
        price += workflow.price
    return price


def _ensure_credits(client: Client, console: Console, price: int) -> None:
    """Top up the demo user if the balance does not cover the price."""
    balance = client.wallets.get(USER).balance
    if balance < price:
        balance = client.wallets.top_up(USER, CREDITS, reason="demo credits").balance
        console.print(f"The user [bold]{USER}[/] got {pluralize(CREDITS, 'more credit')}.")
    console.print(f"The user [bold]{USER}[/] has {pluralize(balance, 'credit')}; these four jobs cost {price}.\n")


class _Follower:
    """Follows one job until it has ended, and shows its events on the board."""

    def __init__(self, client: Client, board: Board, job: Job) -> None:
        self._client = client
        self._board = board
        self._job = job
        stages = {stage.id: stage for stage in client.jobs.stages(job.id)}
        tasks = list(client.jobs.tasks(job.id))
        self._approval_stages = {stage.id: stage for stage in stages.values() if stage.approval}
        self._lines: dict[str, Line] = {}
        single_task = len(tasks) == 1
        prompt = PROMPTS[job.workflow]
        self._head = board.add(job.workflow, f"“{prompt}”")
        for task in tasks:
            stage = stages[task.stage_id]
            name = stage.name if stage.tasks_total == 1 else f"{stage.name} {task.no}"
            self._lines[task.id] = self._head if single_task else board.add(f"  {name}", "", job_name=job.workflow)
        self._approval_lines = {
            stage_id: next(self._lines[task.id] for task in tasks if task.stage_id == stage_id)
            for stage_id in self._approval_stages
        }
        self._last_event_at = time.monotonic()
        self.done: Future[Job] = Future()
        Thread(target=self._run, name=f"demo-{job.workflow}", daemon=True).start()

    def report_blocked(self) -> None:
        """Show what blocks the job, if it had no event for a while and is not just queued or running."""
        if self.done.done() or time.monotonic() - self._last_event_at < _QUIET_SECONDS:
            return
        self._last_event_at = time.monotonic()
        with suppress(CallsheetError):  # the next request may succeed
            constraints = self._client.jobs.explain(self._job.id).constraints
            constraints_by_code = {constraint.code: constraint.message for constraint in constraints}
            unusual = [message for code, message in constraints_by_code.items() if code not in _EXPECTED_CODES]
            if unusual and "running" not in constraints_by_code:
                self._head.show_blocked(" ".join(unusual))

    def _run(self) -> None:
        try:
            self.done.set_result(self._follow())
        except BaseException as error:  # noqa: BLE001 - raised again by _wait_for_jobs
            self.done.set_exception(error)

    def _follow(self) -> Job:
        for event in self._client.jobs.events(self._job.id):
            self._last_event_at = time.monotonic()
            self._handle_event(event)
        job = self._client.jobs.get(self._job.id)
        self._head.end(job.status, job.error.message if job.error and job.status != "canceled" else "")
        for task in self._client.jobs.tasks(self._job.id):
            self._lines[task.id].end(task.status, "")
        return job

    def _handle_event(self, event: Event) -> None:
        line = self._lines.get(event.entity_id or "")
        if line is not None:
            self._handle_task_event(line, event)
        elif event.type == "stage.waiting" and event.entity_id in self._approval_stages:
            self._approve(event.entity_id)
        elif event.type == "job.started":
            self._head.update(self._head.percent, "running")
        elif event.type == "stage.completed":
            self._head.update(self._client.jobs.get(self._job.id).progress, self._head.status_text)

    def _handle_task_event(self, line: Line, event: Event) -> None:
        details = event.data or {}
        if event.type == "task.leased":
            line.update(0, "started" if details.get("attempt") == 1 else f"attempt {details.get('attempt')}")
        elif event.type == "task.progressed":
            line.update(details["progress"], details.get("message") or "")
            if details.get("preview"):
                self._show_preview(line, event.entity_id or "")
        elif event.type == "task.completed":
            line.end("completed", "")
            self._show_outputs(line, event.entity_id or "")
        elif event.type in {"task.retried", "task.failed"}:
            line.update(0, details.get("message") or event.type)

    def _approve(self, stage_id: str) -> None:
        """Approve the storyboard on behalf of the user."""
        line = self._approval_lines[stage_id]
        line.update(0, "waits for approval")
        self._client.jobs.approve(self._job.id, self._approval_stages[stage_id].no, approver="demo")
        line.set_note("approved in your name")

    def _show_preview(self, line: Line, task_id: str) -> None:
        if self._board.shows_pictures:
            with suppress(CallsheetError):  # the task has ended, so its preview is deleted
                line.show(self._client.jobs.get_preview(self._job.id, task_id), "image/png")

    def _show_outputs(self, line: Line, task_id: str) -> None:
        if self._board.shows_pictures:
            for output in self._client.jobs.outputs(self._job.id):
                for file in output.files:
                    if output.task_id == task_id and not file.media_type.startswith("text/"):
                        line.show(self._client.files.read(file), file.media_type)


# -- results


def _download_outputs(client: Client, job: Job, folder: Path) -> list[DownloadedFile]:
    """Download the files of the last stage of a job."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = list(client.jobs.outputs(job.id))
    last = max(output.stage_no for output in outputs)
    return [
        DownloadedFile(job, file, client.files.download(file, folder / f"{job.id[-6:]}-{safe_name(file)}"))
        for output in outputs
        if output.stage_no == last
        for file in output.files
    ]


def _print_summary(
    client: Client, console: Console, jobs: Sequence[Job], files: Sequence[DownloadedFile], folder: Path
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in ("workflow", "price", "file", "size"):
        table.add_column(header, justify="right" if header == "size" else "left", no_wrap=header != "file")
    for downloaded in files:
        price, size = pluralize(downloaded.job.price, "credit"), f"{downloaded.file.bytes / 1000:,.0f} kB"
        cells = (downloaded.job.workflow, price, downloaded.path.name, size)
        table.add_row(*(escape(sanitize(cell)) for cell in cells))
    console.print()
    console.print(table)
    console.print(f"\nThe files are in [bold]{escape(str(folder))}[/].")
    for job in jobs:
        if job.error:
            end = f"{job.workflow} {job.status}"
            console.print(f"[red]{escape(sanitize(end))}[/]: {escape(sanitize(job.error.message))}")
    wallet = client.wallets.get(USER)
    reserved = f", and {wallet.reserved} reserved for active jobs" if wallet.reserved else ""
    console.print(f"The wallet has {pluralize(wallet.balance, 'credit')} left{reserved}.")
