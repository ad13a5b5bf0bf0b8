"""`callsheet workers autoscale`: compute how many workers each kind needs, and run a command when that changes.

It scales up immediately. It scales down only if fewer workers were enough for a whole cooldown, and then to the highest
number that was needed during it; never below the number of busy workers.
"""

import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from msgspec import Struct
from msgspec.structs import replace

from callsheet.cli.commands.fleet.workers import workers
from callsheet.cli.connection import Server, command
from callsheet.cli.output import FAILED, Failure, as_json, format_count, json_line, print_line, table
from callsheet.cli.shutdown import ShutdownSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callsheet.core.policy.autoscale import ScaleSignals

_COMMAND_SECONDS = 120.0
_PLACEHOLDERS = ("{kind}", "{desired}", "{workers}")
_PERMANENT_STATUSES = range(400, 429)
"""Statuses for which a retry does not help: the request or the API key is wrong."""


class ScaleTarget(Struct, frozen=True):
    """The desired number of workers of one kind, and since when fewer would be enough."""

    desired: int
    scale_down_since: float | None = None
    needed: int = 0
    """The highest number that was needed since then."""


def decide_target(before: ScaleTarget | None, observed: "ScaleSignals", now: float, cooldown: float) -> ScaleTarget:
    """Return the new target of a kind."""
    target = before or ScaleTarget(observed.workers)  # the first check assumes that the running workers are the target
    needed = max(observed.recommended_workers, observed.busy_workers)
    if needed >= target.desired:
        return ScaleTarget(needed)
    if not observed.scale_down_safe:
        return ScaleTarget(target.desired)
    since = now if target.scale_down_since is None else target.scale_down_since
    needed_max = max(needed, target.needed if target.scale_down_since is not None else 0)
    if now - since < cooldown:
        return replace(target, scale_down_since=since, needed=needed_max)
    return ScaleTarget(needed_max)


class ScaleDecision(NamedTuple):
    """The decision about one kind: the server's signals, the desired number, and whether the command was run."""

    signals: "ScaleSignals"
    desired: int
    executed: bool
    error: str | None = None

    @property
    def reason(self) -> str:
        reason = self.signals.reason
        if self.error is not None:
            return f"{reason} {self.error}"
        if self.desired > max(self.signals.recommended_workers, self.signals.busy_workers):
            return f"{reason} Fewer would be enough; waiting for the cooldown."
        return reason


class Autoscaler:
    """Fetches the signals of the server, decides, and runs the command."""

    def __init__(
        self, check: "Callable[[], Sequence[ScaleSignals]]", words: "Sequence[str]", cooldown: float,
        clock: "Callable[[], float]" = time.monotonic,
    ) -> None:  # fmt: skip
        self._fetch_signals = check
        self._command_words = words
        self._cooldown = cooldown
        self._clock = clock
        self._targets: dict[str, ScaleTarget] = {}

    def check(self) -> list[ScaleDecision]:
        """Check every kind once. A command that failed is run again at the next check."""
        return [self._decide(signals) for signals in self._fetch_signals()]

    def _decide(self, signals: "ScaleSignals") -> ScaleDecision:
        before = self._targets.get(signals.kind)
        target = decide_target(before, signals, self._clock(), self._cooldown)
        target_changed = target.desired != (signals.workers if before is None else before.desired)
        error = None
        if target_changed and self._command_words:
            error = _run_command(self._command_words, signals, target.desired)
        if error is None:
            self._targets[signals.kind] = target
        return ScaleDecision(
            signals, target.desired, target_changed and bool(self._command_words) and error is None, error
        )


def _run_command(words: "Sequence[str]", signals: "ScaleSignals", desired: int) -> str | None:
    """Run the command. Returns the error, or None if it succeeded."""
    values = (signals.kind, str(desired), str(signals.workers))
    arguments = list(words)
    for placeholder, value in zip(_PLACEHOLDERS, values, strict=True):
        arguments = [word.replace(placeholder, value) for word in arguments]
    try:
        completed = subprocess.run(  # noqa: S603 - the operator's own command, and no shell
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", timeout=_COMMAND_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        return f"{arguments[0]}: {error.strerror}."
    except subprocess.TimeoutExpired:
        return f"{arguments[0]} took longer than {_COMMAND_SECONDS:.0f} seconds."
    if not completed.returncode:
        return None
    last_line = (completed.stderr.strip().splitlines() or ["no output on stderr"])[-1]
    return f"{arguments[0]} exited with {completed.returncode}: {last_line}."


# -- the command


def register(_app: typer.Typer) -> None:
    """Add the command to the group `workers`."""
    command(workers)(autoscale)


def autoscale(  # noqa: PLR0913 - one per option of the command
    server: Server,
    *,
    kind: Annotated[str, typer.Option("--kind", help="Only this kind; by default every kind.")] = "",
    target_wait: Annotated[
        float | None,
        typer.Option("--target-wait", min=1, help="Seconds that a task may wait. Default: the server's setting."),
    ] = None,
    window: Annotated[int | None, typer.Option("--window", min=1, help="Seconds to look back for durations.")] = None,
    workers_min: Annotated[int, typer.Option("--min", min=0, help="Minimum number of workers of a kind.")] = 0,
    workers_max: Annotated[
        int | None, typer.Option("--max", min=1, help="Maximum number of workers of a kind, unless more are busy.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Tasks that one worker runs at once."),
    ] = None,
    exec_command: Annotated[
        str,
        typer.Option("--exec", help="Command to run on a change. {kind}, {desired} and {workers} are filled in."),
    ] = "",
    cooldown: Annotated[
        float,
        typer.Option("--cooldown", min=0, help="Seconds for which fewer workers must be enough before scaling down."),
    ] = 300,
    interval: Annotated[
        float | None, typer.Option("--interval", min=1, help="Repeat the check every NUMBER seconds.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Check once. This is the default without --interval.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print; run nothing.")] = False,
) -> None:
    """Print how many workers each kind needs, and why.

    With --exec, run a command when the number changes. A single check scales down only with --cooldown 0, because it
    cannot know for how long fewer workers would have been enough.
    """
    if once and interval is not None:
        raise typer.BadParameter("--once and --interval cannot be combined. Remove one of them.")
    if workers_max is not None and workers_min > workers_max:
        raise typer.BadParameter("--min is greater than --max. Lower --min, or raise --max.")
    words = _command_words(exec_command)
    with server.client(wait_for_server=True) as client:
        scaler = Autoscaler(
            lambda: client.ops.scale(
                kind, target_wait_seconds=target_wait, window_seconds=window, workers_min=workers_min,
                workers_max=workers_max, concurrency=concurrency,
            ).kinds,
            () if dry_run else words, cooldown,
        )  # fmt: skip
        if interval is None:
            decisions = scaler.check()
            _print_decisions(decisions, server, streaming=False)
            if any(decision.error for decision in decisions):
                raise typer.Exit(FAILED)
            return
        _run_loop(scaler, server, interval)


def _run_loop(scaler: Autoscaler, server: Server, interval: float) -> None:
    """Check at every interval until a shutdown is requested. While the server does not respond, nothing is scaled."""
    from callsheet.client import CallsheetError  # noqa: PLC0415 - slow: imports httpx

    with ShutdownSignal() as shutdown:
        while not shutdown.requested:
            try:
                _print_decisions(scaler.check(), server, streaming=True)
            except CallsheetError as error:
                if error.status in _PERMANENT_STATUSES:
                    raise
                paused = Failure(f"{error.message} Autoscaling is paused until the server responds.")
                sys.stderr.write(f"{paused.line()}\n")
            shutdown.wait(interval)


def _command_words(exec_command: str) -> list[str]:
    try:
        words = shlex.split(exec_command)
    except ValueError as error:
        raise typer.BadParameter(f"--exec is not a valid command line: {error}.") from None
    if words and not any("{desired}" in word for word in words):
        raise typer.BadParameter("--exec has no {desired}. Add it in place of the number of workers.")
    return words


def _print_decisions(decisions: "Sequence[ScaleDecision]", server: Server, *, streaming: bool) -> None:
    if server.json:
        body = {
            "kinds": [
                {
                    "kind": decision.signals.kind,
                    "desired": decision.desired,
                    "executed": decision.executed,
                    "reason": decision.reason,
                    "signals": decision.signals,
                }
                for decision in decisions
            ]
        }
        if streaming:
            print_line(json_line(body))
        else:
            as_json(body)
        sys.stdout.flush()
        return
    table(
        ("KIND", "DEPTH", "OLDEST", "RUNNING", "WORKERS", "DESIRED", "REASON"),
        ((d.signals.kind, format_count(d.signals.depth, is_capped=d.signals.depth_is_capped), _format_oldest(d.signals),
          format_count(d.signals.running, is_capped=d.signals.running_is_capped), d.signals.workers, d.desired,
          d.reason) for d in decisions),
        empty="No kinds are known yet.",
        droppable=("OLDEST", "RUNNING", "DEPTH"),
        wrappable=("REASON",),
    )  # fmt: skip
    sys.stdout.flush()


def _format_oldest(signals: "ScaleSignals") -> str:
    return "" if signals.oldest_wait_seconds is None else f"{signals.oldest_wait_seconds:.0f} s"
