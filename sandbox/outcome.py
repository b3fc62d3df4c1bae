"""How a run can end: the one list, shared by the wire, REST, MCP, the command line, logs and metrics."""

from enum import StrEnum


class Outcome(StrEnum):
    """How one run ended: decided from evidence (allocator, clock, wait status), never from a text of the script."""

    OK = "ok"
    SCRIPT_ERROR = "script_error"
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    CALL_LIMIT = "call_limit"
    POLICY_VIOLATION = "policy_violation"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    @property
    def worker_survives(self) -> bool:
        """Whether the worker's state is known well enough to serve another run: only after a clean end."""
        return self is Outcome.OK
