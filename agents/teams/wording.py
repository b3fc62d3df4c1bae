"""The texts that models read: how messages are shown, and what their system text says of the team. Pure."""

from collections.abc import Sequence

import msgspec

GUIDANCE = """\
You are an agent of a team. You act in turns: this turn ends with your answer, and your next one begins when somebody \
writes to you.
- Tools return at once with a status. None of them waits for another agent.
- A reply to a message that you sent arrives as your next message, after this turn has ended.
- Do not poll: never call check_inbox in a loop to wait for a reply. End your turn instead.
- What you send takes effect when your turn ends.
- If you do not write to the agent that asked you, your answer is sent to it as the reply."""


class Shown(msgspec.Struct, frozen=True):
    """A message as a turn sees it. `reply_to` is the id of the message that it answers."""

    sender: str
    text: str
    id: str
    kind: str
    reply_to: str | None = None

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"from": self.sender, "text": self.text, "message_id": self.id, "kind": self.kind}
        return found if self.reply_to is None else {**found, "reply_to": self.reply_to}


def delivered(message: Shown) -> str:
    """The message as the seed has it: a reply names the message that it answers."""
    if message.reply_to is not None:
        return f"Reply from {message.sender} (to message {message.reply_to}):\n{message.text}"
    return f"Message from {message.sender}:\n{message.text}"


# What a model reads that begins without a message.
BEGIN = "Begin. Nobody has written to you yet; your answer is sent to the agent that created you."


def prompt(messages: Sequence[Shown]) -> str:
    """The messages of a turn as a model reads them."""
    return "\n\n".join(map(delivered, messages)) if messages else BEGIN


def system(instructions: str) -> str:
    """The system text of an agent without a persona of its own."""
    return f"{instructions}\n\n{GUIDANCE}" if instructions else GUIDANCE
