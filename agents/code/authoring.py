"""The interface for authors of Python agents and tools: two protocols, a context, and an error that callers see.

Programs import these names from `engine`. `agents/code/python.py` finds and runs such code.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agents.agent import AgentArgument, AgentPrompt, PromptMessage

__all__ = ["Agent", "AgentArgument", "AgentPrompt", "CallFailed", "Context", "Log", "PromptMessage", "Tool"]

SearchMode = Literal["keyword", "semantic", "hybrid"]


class CallFailed(Exception):
    """A call cannot be answered, for a reason that the caller may know: the text is sent to the caller.

    Raise it with a sentence of your own. The context's calls raise it too: `code` is then the error code that a client
    would have got for the same call (`not_found`, `bad_request`, `tool_error`, ...), else None. Left uncaught, it is
    answered as `agent_error` or `tool_error` with its text. The text of any other exception goes only to the log.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one call. Its lines go to the engine's log, and to the terminal in `engine agent test`."""

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
    """The function behind a context's calls: takes the host call's name, the tool behind it, and its parameters."""

    def __call__(self, call: str, tool: str, params: Mapping[str, Any]) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of one call: its tenant, the code's own configuration, and the engine's functions.

    `tenant` is the caller's name; `config` the `config` table of the code's entry; `tools` the names that `call_tool`
    takes: those that the class declares, less those that its entry leaves out. Valid until the call has ended.
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
        mode: SearchMode | None = None,
        limit: int | None = None,
        source: str | None = None,
        since: str | None = None,
        until: str | None = None,
        path: str | None = None,
        prefix: bool | None = None,
        passages: int | None = None,
        max_tokens: int | None = None,
        explain: bool | None = None,
    ) -> list[dict[str, Any]]:
        """The caller's documents that match, best first; a blank query finds none.

        `mode` and `limit` (1 to 100) are by default those of `[retrieval]`; `source` a label, name or type; `since` and
        `until` are dates or RFC 3339 times; `path` is a pattern of source_ids; with `prefix`, the last word
        may be half typed. A hit has the keys of `POST /tools/search`: unknown values are None, and `passages` and
        `explain` are there if they are wanted; what is explained of the whole search is in the log. Raises CallFailed.
        """
        if not query.strip():
            return []
        given = {"query": query, "mode": mode, "limit": limit, "source": source, "since": since, "until": until}
        given |= {"path": path, "prefix": prefix, "passages": passages, "max_tokens": max_tokens}
        given |= {"explain": explain}
        answer = await self._ask("context.search", "search", {k: v for k, v in given.items() if v is not None})
        for warning in answer.get("warnings", ()):
            self.log.warning(f"context.search: {warning}")
        if "explain" in answer:
            self.log.info(f"context.search: {json.dumps(answer['explain'])}")
        found: list[dict[str, Any]] = answer["results"]
        return found

    async def get(self, document_id: str, *, lines: str | None = None) -> dict[str, Any]:
        """One document of the caller's, by the `id` of a hit, with the keys of `POST /tools/get`.

        `lines` are those of the body that are wanted (`12-40`). Raises CallFailed, with the code `not_found` for a
        missing document.
        """
        given = {"id": document_id} | ({} if lines is None else {"lines": lines})
        document: dict[str, Any] = await self._ask("context.get", "get", given)
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
        """Report progress to a listening caller: a fraction from 0 to 1, which should only increase."""
        self._progress(fraction, message)


class Agent(Protocol):
    """An agent: an async `resolve`. All other attributes are optional: `title`, `description` (str), `tools` (names),
    `arguments` (list of AgentArgument, or of dicts with `name`, `description`, `required`, `enum`), `timeout`
    (seconds), an async `complete(argument, value, given, context)` that returns a list of values, and, for an agent
    that a program hands to `serve`, `name`.
    """

    async def resolve(self, args: dict[str, Any], context: Context) -> AgentPrompt | Mapping[str, Any]:
        """The prompt for these arguments: `system`, and optionally `tools` (narrowing the list) and `messages`."""
        ...


class Tool(Protocol):
    """A tool: an async `execute`. All other attributes are optional: `title`, `description` (str), `parameters` (a JSON
    Schema, a list of parameters, or a pydantic model class, of which `execute` then gets an instance), `returns` (a
    JSON Schema or a pydantic model class), `tools` (the tools that it may call), `annotations` (its side effects, as in
    MCP: `{"readOnlyHint": True}`), `timeout` (seconds), and, for a tool that a program hands to `serve`, `name`.
    """

    async def execute(self, params: Any, context: Context) -> Any:
        """The answer: a JSON value, or a pydantic model."""
        ...
