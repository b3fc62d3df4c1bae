"""How a run can end: the one list, shared by the wire, REST, MCP, the command line, logs and metrics."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

# Who has to change something to prevent it: `script` is the script's author, `operator` the author of the
# configuration.
Fault = Literal["caller", "script", "operator", "engine"]


class Outcome(StrEnum):
    """How one run ended: decided from evidence (allocator, clock, wait status), never from a text of the script.

    `OUTCOMES` has the meaning of each.
    """

    OK = "ok"
    SCRIPT_ERROR = "script_error"
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    CALL_LIMIT = "call_limit"
    POLICY_VIOLATION = "policy_violation"
    MODEL_LIMIT = "model_limit"
    MODEL_ERROR = "model_error"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    @property
    def spec(self) -> "OutcomeSpec":
        return OUTCOMES[self]


@dataclass(frozen=True, slots=True)
class OutcomeSpec:
    """One outcome: a sentence, whose fault it is (None: nothing went wrong), whether the worker may serve another run,
    and whether the same request may succeed when it is repeated.

    A worker survives only a clean end: after any other its state is not known.
    """

    outcome: Outcome
    sentence: str
    fault: Fault | None
    worker_survives: bool = False
    retry: bool = False


OUTCOMES: dict[Outcome, OutcomeSpec] = {
    spec.outcome: spec
    for spec in (
        OutcomeSpec(Outcome.OK, "The script returned an answer.", None, worker_survives=True),
        OutcomeSpec(
            Outcome.SCRIPT_ERROR, "The script raised an error that it did not catch, or its answer has a wrong shape.",
            "script",
        ),
        OutcomeSpec(Outcome.TIMEOUT, "The script did not end within `timeout_s`.", "script"),
        OutcomeSpec(Outcome.CPU_LIMIT, "The script, or its tenant, used up its CPU time.", "script"),
        OutcomeSpec(Outcome.MEMORY_LIMIT, "The script needed more than `memory_bytes`.", "script"),
        OutcomeSpec(Outcome.OUTPUT_LIMIT, "The answer is larger or deeper than the limits let through.", "script"),
        OutcomeSpec(Outcome.CALL_LIMIT, "The script, or its tenant, made too many host calls.", "script"),
        OutcomeSpec(Outcome.POLICY_VIOLATION, "The sandbox stopped the process.", "script"),
        OutcomeSpec(
            Outcome.MODEL_LIMIT, "The run used up its turns, tool calls, tokens or money, and there was no answer.",
            "script",
        ),
        OutcomeSpec(
            Outcome.MODEL_ERROR, "The model gave no answer, or half of one.", "operator", retry=True,
        ),
        OutcomeSpec(
            Outcome.WORKER_LOST, "The process ended, and no limit explains it.", "engine", retry=True,
        ),
        OutcomeSpec(Outcome.CANCELLED, "The caller went away before the end.", "caller", retry=True),
        OutcomeSpec(
            Outcome.REJECTED, "The run was refused before it began; the code of the refusal says why.", "caller",
            retry=True,
        ),
    )
}  # fmt: skip
