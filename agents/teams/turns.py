"""The states of a turn, and which event leads from one to another. Pure.

An agent has one turn at a time: the one that runs, or the next one. `IDLE` is an agent without anything to do, `ENDED`
one that is gone.
"""

from enum import StrEnum


class State(StrEnum):
    IDLE = "idle"
    READY = "ready"
    LEASED = "leased"
    PARKED = "parked"
    FAILED = "failed"  # quarantined: it failed as often as it may
    ENDED = "ended"


class Step(StrEnum):
    """What happens to a turn."""

    WAKE = "wake"  # a message arrives
    LEASE = "lease"  # it begins
    COMMIT = "commit"  # it ends well, and nothing waits
    CONTINUE = "continue"  # it ends well, and messages wait
    FAIL = "fail"  # it fails, and will be tried again
    QUARANTINE = "quarantine"  # it failed as often as it may
    RELEASE = "release"  # a quota refuses it, or the server drains: no attempt
    PARK = "park"  # a person has to decide
    RESUME = "resume"  # the person has decided
    POKE = "poke"  # its parent lets it try again
    END = "end"  # the agent is terminated, has completed, or its team stops


# A step that is not here is refused, or changes nothing (`WAKE`).
TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.IDLE, Step.WAKE): State.READY,
    (State.READY, Step.LEASE): State.LEASED,
    (State.LEASED, Step.COMMIT): State.IDLE,
    (State.LEASED, Step.CONTINUE): State.READY,
    (State.LEASED, Step.FAIL): State.READY,
    (State.LEASED, Step.QUARANTINE): State.FAILED,
    (State.LEASED, Step.RELEASE): State.READY,
    (State.LEASED, Step.PARK): State.PARKED,
    (State.PARKED, Step.RESUME): State.READY,
    (State.FAILED, Step.POKE): State.READY,
    (State.IDLE, Step.END): State.ENDED,
    (State.READY, Step.END): State.ENDED,
    (State.LEASED, Step.END): State.ENDED,
    (State.PARKED, Step.END): State.ENDED,
    (State.FAILED, Step.END): State.ENDED,
}

# Seconds until a turn that failed is tried again; after the last try it is quarantined.
RETRY_S = (1.0, 4.0, 16.0)


def after(state: State, step: Step) -> State | None:
    """The state after a step; None if the step is not possible then."""
    return TRANSITIONS.get((state, step))


def retry_s(failures: int) -> float | None:
    """How long a turn waits that has failed so often, this time included; None: it is not tried again."""
    return RETRY_S[failures - 1] if failures <= len(RETRY_S) else None
