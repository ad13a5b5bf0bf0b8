"""The demonstration: jobs that cost credits, drawn by worker threads, one of them killed in the middle."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from callsheet.config import Settings
from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.demo.picture import Picture
from callsheet.engine import Engine
from callsheet.engine.loops import Pulse, Sweeper
from callsheet.store.connection import Connection
from callsheet.store.verify import check

TENANT, USER = "demo", "you"
PROMPTS = ("a lighthouse in the fog", "dunes at noon", "the sea from the train", "a city after rain")
SKETCH = Recipe(
    name="sketch",
    price=3,
    lease_seconds=2,
    input_schema={"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
    stages=[StageSpec(name="draw", kind="draw")],
)


class Gone(Exception):  # noqa: N818 - the worker is gone
    """Thrown inside a worker to play its death: it stops without a word."""


class Painter(threading.Thread):
    """A worker: claims, draws with progress, stores the file, completes."""

    def __init__(self, engine: Engine, name: str, folder: Path, *, dies_at: int = 101) -> None:
        super().__init__(name=name, daemon=True)
        self._engine = engine
        self._folder = folder
        self._dies_at = dies_at
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            claim = commands.Claim(worker_id=self.name, kinds=("draw",))
            for leased in self._engine.claim(claim, wait_seconds=1):
                try:
                    self._paint(leased)
                except Gone:
                    return

    def _paint(self, leased: commands.Leased) -> None:
        prompt = _prompt(leased)
        picture = Picture(prompt)
        told = 0
        for percent in picture.draw():
            if percent >= self._dies_at:
                raise Gone
            if percent >= told + 10:
                told = percent
                beat = commands.Heartbeat(lease=leased.lease, progress=percent, message=f"{self.name} draws")
                self._engine.execute(beat)
        file = self._folder / _file_name(leased.lease.job_id, leased.lease.attempt)
        body = picture.png()
        file.write_bytes(body)
        output = {"file": file.name, "bytes": len(body), "type": "image/png"}
        self._engine.execute(commands.Complete(lease=leased.lease, output=output))


def show(data: Path, console: Console) -> bool:
    """Run the demonstration in a folder; returns whether everything is in its place at the end."""
    files = data / "files"
    files.mkdir(parents=True, exist_ok=True)
    with Engine.open(data / "callsheet.db", Settings()) as engine:
        engine.execute(commands.PutTenant(tenant=TENANT))
        engine.execute(commands.PutWorkflow(recipe=SKETCH))
        engine.execute(commands.TopUp(tenant=TENANT, user=USER, amount=20, reason="welcome"))
        console.print(f"Database and files: [bold]{data}[/]. 20 credits added; a sketch costs {SKETCH.price}.")
        submits = [
            commands.Submit(tenant=TENANT, user=USER, workflow="sketch", input={"prompt": prompt}) for prompt in PROMPTS
        ]
        jobs: list[commands.Submitted] = engine.execute_many(submits)
        _work(engine, jobs, files, console)
        _results(engine, jobs, files, console)
        connection = engine.database.connect(reading=True)
        return _verified(connection, console)


def _work(engine: Engine, jobs: Sequence[commands.Submitted], files: Path, console: Console) -> None:
    console.print("Two workers take the jobs; one of them dies at 60 % of its first picture, without a word.")
    painters = [Painter(engine, "ada", files), Painter(engine, "doomed", files, dies_at=60)]
    sweeper = Pulse(Sweeper(engine), engine.read.now, 0.2, lambda _, error: console.print(f"sweeper: {error}"))
    sweeper.start()
    for painter in painters:
        painter.start()
    bars = Progress(
        TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.fields[word]}"), console=console
    )
    with bars:
        shown = {job.job_id: bars.add_task(text, total=100, word="") for job, text in zip(jobs, PROMPTS, strict=True)}
        while not _drawn(engine, bars, shown):
            threading.Event().wait(0.1)
    for painter in painters:
        painter.stopping.set()
        painter.join()
    sweeper.stop()


def _drawn(engine: Engine, bars: Progress, shown: dict[str, TaskID]) -> bool:
    done = True
    for job_id, bar in shown.items():
        job, task = engine.read.job(TENANT, job_id), engine.read.tasks(job_id)[0]
        word = task.message if task.status == "running" and task.message else task.status
        bars.update(bar, completed=100 if job.status == "completed" else task.progress, word=word)
        done = done and job.finished_at is not None
    return done


def _results(engine: Engine, jobs: Sequence[commands.Submitted], files: Path, console: Console) -> None:
    table = Table("picture", "status", "attempts", "file")
    for job, prompt in zip(jobs, PROMPTS, strict=True):
        task = engine.read.tasks(job.job_id)[0]
        attempts = ", ".join(f"{a.worker_id}: {a.outcome}" for a in engine.read.attempts(task.id))
        file = files / _file_name(job.job_id, task.attempts)
        table.add_row(prompt, engine.read.job(TENANT, job.job_id).status, attempts, file.name if file.exists() else "")
    console.print(table)
    console.print(f"The pictures are in [bold]{files}[/].")
    wallet = engine.read.wallet(TENANT, USER)
    console.print(f"Wallet: {wallet.balance} credits, {wallet.held} held.")


def _verified(connection: Connection, console: Console) -> bool:
    try:
        broken = check(connection)
    finally:
        connection.close()
    console.print("Every job, attempt and credit is in its place." if not broken else f"Broken: {broken}")
    return not broken


def _file_name(job_id: str, attempt: int) -> str:
    """Name a file by job and attempt, so that a worker that comes back late overwrites nothing."""
    return f"{job_id[-12:]}-{attempt}.png"


def _prompt(leased: commands.Leased) -> str:
    return str(json.loads(leased.input)["prompt"])
