"""What the author of a Python agent or tool writes against: two protocols, a context, and an error that callers see.

Programs import these names from `engine`. How such code is found and run is in `agents/code/python.py`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agents.agent import AgentArgument, AgentPrompt, PromptMessage

__all__ = ["Agent", "AgentArgument", "AgentPrompt", "CallFailed", "Context", "Log", "PromptMessage", "Tool"]

SearchMode = Literal["keyword", "semantic", "hybrid"]


class CallFailed(Exception):
    """A call cannot be answered, and the caller may know why: the text is shown to them.

    Raise it with a sentence of your own. The context's calls raise it too: `code` is then the error code that a client
    would have got for the same call (`not_found`, `bad_request`, `tool_error`, ...), else None. Left uncaught, it is
    answered as `agent_error` or `tool_error` with its text. The text of any other exception is for the log alone.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one call. Its lines go to the engine's log and to whoever tests the code on the command line."""

    _line: Callable[[str, str], None]

    def debug(self, text: str) -> None:
        self._line("debug", text)

    def info(self, text: str) -> None:
        self._line("info", text)

    def warning(self, text: str) -> None:
        self._line("warn", text)

    def error(self, text: str) -> None:
        self._line("error", text)


class Asks(Protocol):
    """How a context asks on behalf of its call: the host call's name, the tool behind it, its parameters."""

    def __call__(self, call: str, tool: str, params: Mapping[str, Any]) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One call, seen from inside: who asks, the code's own configuration, and what it may ask of the engine.

    `tenant` is the caller's name; `config` the `config` table of the code's entry; `tools` the names that `call_tool`
    takes: those that the class declares, less what its entry leaves out. Valid until the call has ended.
    """

    tenant: str
    config: Mapping[str, Any]
    tools: tuple[str, ...]
    log: Log
    _ask: Asks
    _progress: Callable[[float, str | None], None]

    async def search(
        self,
        query: str,
        *,
        mode: SearchMode = "keyword",
        limit: int | None = None,
        source: str | None = None,
        since: str | None = None,
    ) -> list[dict[str, Any]]:
        """The caller's documents that match, best first; a blank query finds none.

        `limit` is 1 to 100, by default `retrieval.final_limit`; `source` a label, name or type; `since` a date or RFC
        3339 time. A hit has `id`, `source`, `source_id`, `title`, `score` (0 to 1), `snippet`, `source_url`,
        `updated_at`; what is not known is None. Raises CallFailed.
        """
        if not query.strip():
            return []
        given = {"query": query, "mode": mode, "limit": limit, "source": source, "since": since}
        answer = await self._ask("context.search", "search", {k: v for k, v in given.items() if v is not None})
        for warning in answer.get("warnings", ()):
            self.log.warning(f"context.search: {warning}")
        found: list[dict[str, Any]] = answer["results"]
        return found

    async def get(self, document_id: str) -> dict[str, Any]:
        """One document of the caller's, by the `id` of a hit: the keys of `POST /tools/get`.

        Raises CallFailed, for one that is missing with the code `not_found`.
        """
        document: dict[str, Any] = await self._ask("context.get", "get", {"id": document_id})
        return document

    async def sources(self) -> list[dict[str, Any]]:
        """The sources of the caller's documents, with the keys of `GET /tools/sources`. Raises CallFailed."""
        sources: list[dict[str, Any]] = (await self._ask("context.sources", "sources", {}))["sources"]
        return sources

    async def call_tool(self, name: str, params: Mapping[str, Any] | None = None) -> Any:
        """A tool's answer, as its flat JSON value. The tool runs under its own grants, within this call's deadline.

        Raises CallFailed: the tool is not in `tools`, does not exist, calls itself, refuses the parameters, or failed.
        """
        return await self._ask("context.call_tool", name, params or {})

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Tell a caller who listens how far this is: 0 to 1, and only ever more."""
        self._progress(fraction, message)


class Agent(Protocol):
    """An agent: an async `resolve`. Beside it, all optional: `title`, `description` (str), `tools` (list of names),
    `arguments` (list of AgentArgument, or of dicts with `name`, `description`, `required`, `enum`), `timeout`
    (seconds), an async `complete(argument, value, given, context)` that returns a list of values, and, for an agent
    that a program hands to `serve`, `name`.
    """

    async def resolve(self, args: dict[str, Any], context: Context) -> AgentPrompt | Mapping[str, Any]:
        """The prompt for these arguments: `system`, and optionally `tools` (narrowing the list) and `messages`."""
        ...


class Tool(Protocol):
    """A tool: an async `execute`. Beside it, all optional: `title`, `description` (str), `parameters` (a JSON Schema, a
    list of parameters, or a pydantic model class, which `execute` then gets an instance of), `returns` (a JSON Schema
    or a pydantic model class), `tools` (the tools that it may call), `annotations` (what it does to the world, in MCP's
    words: `{"readOnlyHint": True}`), `timeout` (seconds), and, for a tool that a program hands to `serve`, `name`.
    """

    async def execute(self, params: Any, context: Context) -> Any:
        """The answer: a JSON value, or a pydantic model."""
        ...
