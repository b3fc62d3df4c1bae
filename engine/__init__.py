"""The engine, and the names that programs import to embed it: `from engine import serve`.

These names are defined above this package and imported on first use (PEP 562), so that importing a module of this
package loads neither agents nor a server.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.code.authoring import Agent, AgentArgument, AgentPrompt, CallFailed, Context, PromptMessage, Tool
    from server.program import serve, serve_async

__all__ = [
    "Agent",
    "AgentArgument",
    "AgentPrompt",
    "CallFailed",
    "Context",
    "PromptMessage",
    "Tool",
    "serve",
    "serve_async",
]

if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name in ("serve", "serve_async"):
            from server import program

            return getattr(program, name)
        if name in __all__:
            from agents.code import authoring

            return getattr(authoring, name)
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
