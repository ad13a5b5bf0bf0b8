"""`callsheet workers autoscale`: compute how many workers each kind needs, and run a command when that changes.

More are desired at once. Fewer are desired only after a while in which fewer would have done all the time, and then as
many as were needed at most in that while; never fewer than are busy.
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
from callsheet.cli.output import FAILED, as_json, json_line, print_line, table
from callsheet.cli.shutdown import ShutdownSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callsheet.core.policy.autoscale import ScaleSignals

_COMMAND_SECONDS = 120.0
_PLACEHOLDERS = ("{kind}", "{desired}", "{workers}")
_PERMANENT_STATUSES = range(400, 429)
"""Statuses of a wrong call or key. A retry would not help."""


class ScaleTarget(Struct, frozen=True):
    """The last desired number of workers of one kind, and since when fewer would do."""

    desired: int
    scale_down_since: float | None = None
    needed: int = 0
    """The most that were needed since then."""


def decide_target(before: ScaleTarget | None, observed: "ScaleSignals", now: float, cooldown: float) -> ScaleTarget:
    """Decide how many workers are desired now."""
    target = before or ScaleTarget(observed.workers)  # at the first check, assume that the running workers are desired
    needed = max(observed.recommended_workers, observed.busy_workers)
    if needed >= target.desired:
        return ScaleTarget(needed)
    if not observed.scale_down_safe:
        return ScaleTarget(target.desired)
    since = now if target.scale_down_since is None else target.scale_down_since
    most = max(needed, target.needed if target.scale_down_since is not None else 0)
    if now - since < cooldown:
        return replace(target, scale_down_since=since, needed=most)
    return ScaleTarget(most)


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
            return f"{reason} Fewer would do; waiting for the cooldown."
        return reason


class Autoscaler:
    """Fetches signals, decides, and runs the command."""

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
        return [self._decide(one) for one in self._fetch_signals()]

    def _decide(self, one: "ScaleSignals") -> ScaleDecision:
        before = self._targets.get(one.kind)
        target = decide_target(before, one, self._clock(), self._cooldown)
        target_changed = target.desired != (one.workers if before is None else before.desired)
        error = None
        if target_changed and self._command_words:
            error = _run_command(self._command_words, one, target.desired)
        if error is None:
            self._targets[one.kind] = target
        return ScaleDecision(one, target.desired, target_changed and bool(self._command_words) and error is None, error)


def _run_command(words: "Sequence[str]", one: "ScaleSignals", desired: int) -> str | None:
    """Run the command; return what went wrong."""
    values = (one.kind, str(desired), str(one.workers))
    arguments = list(words)
    for placeholder, value in zip(_PLACEHOLDERS, values, strict=True):
        arguments = [word.replace(placeholder, value) for word in arguments]
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command, and no shell
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", timeout=_COMMAND_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        return f"{arguments[0]}: {error.strerror}."
    except subprocess.TimeoutExpired:
        return f"{arguments[0]} took longer than {_COMMAND_SECONDS:.0f} seconds."
    if not done.returncode:
        return None
    last = done.stderr.strip().splitlines()[-1:] or ["no error output"]
    return f"{arguments[0]} ended with {done.returncode}: {last[0]}."


# -- the command


def register(_app: typer.Typer) -> None:
    """Add the command to those of the fleet."""
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
    least: Annotated[int, typer.Option("--min", min=0, help="Minimum number of workers of a kind.")] = 0,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Maximum number of workers of a kind, unless more are busy.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Tasks that one worker runs at once."),
    ] = None,
    exec_command: Annotated[
        str,
        typer.Option("--exec", help="Command to run when the number changes, with {kind} and {desired} filled in."),
    ] = "",
    cooldown: Annotated[
        float, typer.Option("--cooldown", min=0, help="Seconds that fewer workers must be enough before scaling down.")
    ] = 300,
    interval: Annotated[
        float | None, typer.Option("--interval", min=1, help="Check again every so many seconds.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Check once. This is the default without --interval.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print; run nothing.")] = False,
) -> None:
    """Print how many workers each kind needs, and why.

    With --exec, run a command when the number changes. A single check scales down only with --cooldown 0, because it
    cannot know for how long fewer workers would have been enough.
    """
    if once and interval is not None:
        raise typer.BadParameter("--once and --interval cannot be combined.")
    if most is not None and least > most:
        raise typer.BadParameter("--min is greater than --max.")
    words = _command_words(exec_command)
    with server.client(wait_for_server=True) as client:
        scaler = Autoscaler(
            lambda: client.ops.scale(
                kind, target_wait_seconds=target_wait, window_seconds=window, workers_min=least, workers_max=most,
                concurrency=concurrency,
            ).kinds,
            () if dry_run else words, cooldown,
        )  # fmt: skip
        if interval is None:
            observed = scaler.check()
            _show(observed, server, streaming=False)
            if any(one.error for one in observed):
                raise typer.Exit(FAILED)
            return
        _run_loop(scaler, server, interval)


def _run_loop(scaler: Autoscaler, server: Server, interval: float) -> None:
    """Check at every interval until a shutdown is requested; wait for a server that does not answer."""
    from callsheet.client import CallsheetError  # noqa: PLC0415 - brings httpx

    with ShutdownSignal() as shutdown:
        while not shutdown.requested:
            try:
                _show(scaler.check(), server, streaming=True)
            except CallsheetError as error:
                if error.status in _PERMANENT_STATUSES:
                    raise
                sys.stderr.write(f"callsheet: {error.message} Autoscaling is paused until the server answers.\n")
            shutdown.wait(interval)


def _command_words(exec_command: str) -> list[str]:
    try:
        words = shlex.split(exec_command)
    except ValueError as error:
        raise typer.BadParameter(f"--exec is not a valid command line: {error}.") from None
    if words and not any("{desired}" in word for word in words):
        raise typer.BadParameter("--exec has no {desired}. Add it where the number of workers belongs.")
    return words


def _show(observed: "Sequence[ScaleDecision]", server: Server, *, streaming: bool) -> None:
    if server.json:
        body = {
            "kinds": [
                {
                    "kind": one.signals.kind,
                    "desired": one.desired,
                    "executed": one.executed,
                    "reason": one.reason,
                    "signals": one.signals,
                }
                for one in observed
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
        ((one.signals.kind, one.signals.depth, _age(one.signals), one.signals.running, one.signals.workers, one.desired,
          one.reason) for one in observed),
        empty="No kinds are known yet.",
        least=("OLDEST", "RUNNING", "DEPTH"),
        text=("REASON",),
    )  # fmt: skip
    sys.stdout.flush()


def _age(one: "ScaleSignals") -> str:
    return "" if one.oldest_wait_seconds is None else f"{one.oldest_wait_seconds:.0f} s"
