"""Questions to the caller of a run under way: what a person allows, what the caller's own model says.

Front ends that have a way back to their client put an `Ask` into the call (`agents.agent.Call`).
"""

from typing import Literal, Protocol

from engine.models.shapes import Answer, Request

# What a caller must be able to do for each question, in the words of MCP.
Capability = Literal["elicitation", "sampling"]

# Clients answer at most this many rounds of questions of one call (the SDKs' own bound).
ROUNDS = 10


class CannotAsk(Exception):
    """The caller cannot be asked, or gave no answer in time. The text is the reason, in one sentence for the caller.

    `missing` is the capability that the caller lacks; None if it has it, and a bound or its silence is the reason.
    """

    def __init__(self, reason: str, *, missing: Capability | None = None) -> None:
        super().__init__(reason)
        self.missing = missing


class Ask(Protocol):
    """A way to ask the caller of a run. Both wait for the answer, within a bound; questions may be asked side by side.

    A front end may bound how many questions a call may ask, and answers the rest by CannotAsk.
    """

    async def confirm(self, tool: str, arguments: str) -> bool:
        """Whether a person allows this call of a tool; `arguments` is its JSON as text. No answer but yes is a yes.

        Raises CannotAsk.
        """
        ...

    async def sample(self, request: Request) -> Answer:
        """An answer of the caller's own model; its usage is estimated. Raises CannotAsk, and ModelFailed for one that
        is no answer, or that is larger than `output_bytes` (AnswerTooLarge).
        """
        ...
