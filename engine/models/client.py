"""The wire `client`: the model of the caller's own client answers, by way of the front end that was called."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from engine.models import openai
from engine.models.shapes import Answer, Event, ModelFailed, Request, Stopped, TextDelta

# Asks the caller. Raises Problem for one that cannot be asked, and ModelFailed.
Sample = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class ClientWire:
    """The caller's model. Without `sample` there is no caller: nothing is asked."""

    sample: Sample | None = None
    url: None = None

    def body(self, request: Request) -> bytes:
        """The request as a server would get it, by whose size its tokens are counted."""
        return orjson.dumps(openai.body(request, "client", 1, openai.Dialect()))

    @asynccontextmanager
    async def send(self, request: Request, key: str | None) -> AsyncIterator[AsyncIterator[Event]]:
        """One try. Raises ModelFailed, and Problem as `sample` does."""
        if self.sample is None:
            raise ModelFailed("it is the model of a client that calls over MCP, and no client called")
        yield _events(await self.sample(request))


async def _events(answer: Answer) -> AsyncIterator[Event]:
    if answer.text:
        yield TextDelta(answer.text)
    for call in answer.calls:
        yield call
    yield answer.usage
    yield Stopped(answer.reason)
