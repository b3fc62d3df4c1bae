"""From outcomes to errors: the one place where the end of a run becomes a `Problem`."""

from engine.errors import Code, Problem
from engine.run import RunResult
from sandbox.wire.outcome import Outcome

# Any other outcome has the error code of its own name; that of `script_error` depends on what was called.
_CODES = {Outcome.REJECTED: Code.UNAVAILABLE, Outcome.CANCELLED: Code.UNAVAILABLE}


class RunFailed(Problem):
    """A run that failed. `result` has its usage and log, for front ends that show them."""

    def __init__(self, result: RunResult, script_error: Code, subject: str) -> None:
        assert result.failure is not None
        code = script_error if result.outcome is Outcome.SCRIPT_ERROR else _CODES.get(result.outcome)
        if result.failure.retry_after_s is not None:  # stopped by a quota of its tenant, not by a limit of its own
            code = Code.QUOTA_EXCEEDED
        super().__init__(
            code or Code(result.outcome.value),
            f"{subject}: {result.failure.message}",
            run_id=result.run_id,
            limit=result.failure.limit,
            retry_after_s=result.failure.retry_after_s,
            traceback=result.failure.traceback,
        )
        self.result = result
