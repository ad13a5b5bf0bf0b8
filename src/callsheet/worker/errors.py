"""What a handler raises, and what is raised inside it.

    Exception
      Retry                    raised by a handler: this try failed, another may not
      GiveUp                   raised by a handler: no other try will do better
      Unreachable              raised by a link: no answer, or "later"; whether it was heard is not known
      Dismissed                raised by a link: the house does not know this worker any longer; it may come again
      Barred                   raised by a link: the house does not let this worker in
      CommandFailed            raised by a protection: the operator's own command failed
    BaseException
      Stop                     raised inside a handler at its next call of the context
        Canceled               a person stopped the job
        Lost                   the lease is another's by now, or ran out
        Leaving                the worker goes away and gives the task back

A stop is no Exception, so that a handler's own `except Exception` does not go on with work that nobody wants.
"""


class _TaskError(Exception):
    def __init__(self, message: str, code: str = "task_failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RetryableError(_TaskError):
    """This try failed; another one may succeed. `resume`: with what was submitted, which the next one is told of."""

    def __init__(self, message: str, code: str = "task_failed", *, resume: bool = False) -> None:
        super().__init__(message, code)
        self.resume = resume


class NonRetryableError(_TaskError):
    """This task cannot succeed, however often it is tried."""


class UnreachableError(Exception):
    """There was no answer, or only "later"; `after_seconds` is when to ask again, if that was said."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InvalidTokenError(Exception):
    """The worker's own token is good no longer: what it has in hand is not its own any more."""


class RegistrationError(Exception):
    """The house does not let this worker in; the message says what a person can do."""


class CommandError(OSError):
    """A command of the operator failed; the message says how."""


class TaskStopped(BaseException):
    """Stop this task: its result is not wanted from here."""


class TaskCanceled(TaskStopped):
    """A person stopped the job."""


class TaskLeaseLost(TaskStopped):
    """The lease is no longer this worker's."""


class WorkerShutdown(TaskStopped):
    """The worker goes away, and gave the task back."""
