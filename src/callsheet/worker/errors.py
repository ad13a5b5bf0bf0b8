"""Exceptions of the worker SDK.

    Exception
      RetryableError           raised by a handler: this attempt failed, another attempt may succeed
      NonRetryableError        raised by a handler: no attempt can succeed
      UnreachableError         raised by a link: no response, or a response that asks to retry later
      InvalidTokenError        raised by a link: the server no longer accepts the worker's token
      RegistrationError        raised by a link: the server rejected the registration
      CommandError             raised by a scale-in protection: the operator's command failed
    BaseException
      TaskStopped              raised inside a handler by the next call of the context
        TaskCanceled           the job was canceled
        TaskLeaseLost          the lease expired, or belongs to another worker
        WorkerShutdown         the worker is shutting down and requeued the task

`TaskStopped` is not an `Exception`, so that `except Exception` in a handler does not swallow it.
"""


class _TaskError(Exception):
    def __init__(self, message: str, code: str = "task_failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RetryableError(_TaskError):
    """Raise it in a handler if this attempt failed and another one may succeed.

    With `resume=True`, the next attempt finds the provider submission of this one in `Context.resumed`.
    """

    def __init__(self, message: str, code: str = "task_failed", *, resume: bool = False) -> None:
        super().__init__(message, code)
        self.resume = resume


class NonRetryableError(_TaskError):
    """Raise it in a handler if the task cannot succeed, for example because its input is invalid."""


class UnreachableError(Exception):
    """The server, or its storage, did not respond or asked to retry later.

    The request may or may not have been processed. `retry_after_seconds` is the delay that the server asked for, or 0.
    """

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InvalidTokenError(Exception):
    """The worker's token was replaced or revoked. The worker registers again, and keeps the leases that it still has.

    `sent_at` is when the request was sent, by the monotonic clock: the worker may have registered again since.
    """

    def __init__(self, message: str, sent_at: float = 0.0) -> None:
        super().__init__(message)
        self.sent_at = sent_at


class RegistrationError(Exception):
    """The server rejected the registration. The message says why and what an operator can do."""


class CommandError(OSError):
    """A command that the operator configured failed. The message contains the exit code and the last line of stderr."""


class TaskStopped(BaseException):
    """Base class of the reasons to stop a handler. Do not catch it, or raise it again after cleaning up."""


class TaskCanceled(TaskStopped):
    """The job was canceled."""


class TaskLeaseLost(TaskStopped):
    """The lease expired or was taken over; the result of this attempt would be rejected."""


class WorkerShutdown(TaskStopped):
    """The worker is shutting down. The task was requeued, which does not count as an attempt."""
