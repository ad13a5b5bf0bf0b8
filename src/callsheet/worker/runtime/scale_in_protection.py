"""Protection against being scaled in while there is work in hand: on when work begins, off when there is none."""

import shlex
import subprocess
import threading
from typing import Protocol

from callsheet.worker.errors import CommandError
from callsheet.worker.runtime.events import EventListener, WorkerError

_COMMAND_TIMEOUT_SECONDS = 30.0
_IDLE_SECONDS = 5.0
"""How long a worker is without work before its protection goes: between two tasks it stays."""


class ScaleInProtection(Protocol):
    """Whatever keeps a machine from being taken away. May block, and may fail."""

    def set(self, *, enabled: bool) -> None:
        """Protect this machine, or let it go."""
        ...


class CommandProtection:
    """Runs a command of the operator with `on` or `off` behind it."""

    def __init__(self, command: str) -> None:
        self._argv = shlex.split(command)
        if not self._argv:
            raise ValueError("The command that protects this machine is empty.")

    def set(self, *, enabled: bool) -> None:
        try:
            completed = subprocess.run(  # noqa: S603 - the operator's own command, and no shell
                [*self._argv, "on" if enabled else "off"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                timeout=_COMMAND_TIMEOUT_SECONDS, check=False,
            )  # fmt: skip
        except OSError as error:
            raise CommandError(f"{self._argv[0]} cannot be run: {error.strerror}") from None
        if completed.returncode:
            last = completed.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            raise CommandError(f"{self._argv[0]} ended with {completed.returncode}: {last[0]}")


class ProtectionController:
    """Calls a protection when it has to change, in a thread of its own: no task waits for it, no failure stops one."""

    def __init__(
        self, protection: ScaleInProtection, on_event: EventListener, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._protection = protection
        self._emit = on_event
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._busy = self._stopping = False
        self._protected: bool | None = None
        """What was set last; nothing is known of the time before this worker."""
        self._thread = threading.Thread(target=self._run, name="callsheet-guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the machine go, and end."""
        with self._changed:
            self._busy, self._stopping = False, True
            self._changed.notify_all()
        self._thread.join(_COMMAND_TIMEOUT_SECONDS)

    def set_busy(self, *, busy: bool) -> None:
        """Say whether there is work in hand."""
        with self._changed:
            if self._busy != busy:
                self._busy = busy
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._busy != self._protected)
                if self._protected and not self._stopping:
                    self._changed.wait_for(lambda: self._stopping or self._busy, self._idle_seconds)
                busy, stopping = self._busy, self._stopping
            if busy != self._protected:
                self._apply(enabled=busy)
            if stopping:
                return

    def _apply(self, *, enabled: bool) -> None:
        self._protected = enabled
        try:
            self._protection.set(enabled=enabled)
        except Exception as error:  # noqa: BLE001 - an operator's hook: it is told, and never fatal
            self._emit(WorkerError(f"Switching the protection {'on' if enabled else 'off'} failed", error))
