"""Scale-in protection: on while the worker runs tasks, off when it is idle."""

import shlex
import subprocess
import threading
from typing import Protocol

from callsheet.worker.errors import CommandError
from callsheet.worker.runtime.worker_events import EventListener, WorkerError

_COMMAND_TIMEOUT_SECONDS = 30.0
_IDLE_SECONDS = 5.0
"""How long a worker must be idle before the protection is removed; it stays on between two tasks."""


class ScaleInProtection(Protocol):
    """Protects this machine from an autoscaler. May block and may raise."""

    def set(self, *, enabled: bool) -> None:
        """Enable or disable the protection of this machine."""
        ...


class CommandProtection:
    """Runs a command with `on` or `off` as its last argument."""

    def __init__(self, command: str) -> None:
        self._argv = shlex.split(command)
        if not self._argv:
            raise ValueError("The protection command is empty. Pass a program and its arguments.")

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
            last_line = (completed.stderr.strip().splitlines() or ["no output on stderr"])[-1]
            raise CommandError(f"{self._argv[0]} exited with {completed.returncode}: {last_line}")


class ProtectionController:
    """Switches the protection in a background thread, so that no task waits for it or fails with it."""

    def __init__(
        self, protection: ScaleInProtection, on_event: EventListener, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._protection = protection
        self._emit = on_event
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._busy = self._stopping = False
        self._protected: bool | None = None
        """The last value that was set; None if unknown."""
        self._thread = threading.Thread(target=self._run, name="callsheet-protection", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Remove the protection and end the thread."""
        with self._changed:
            self._busy, self._stopping = False, True
            self._changed.notify_all()
        self._thread.join(_COMMAND_TIMEOUT_SECONDS)

    def set_busy(self, *, busy: bool) -> None:
        """Set whether the worker runs tasks."""
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
        except Exception as error:  # noqa: BLE001 - the operator's hook must not stop the worker
            self._emit(WorkerError(f"Switching the scale-in protection {'on' if enabled else 'off'} failed", error))
