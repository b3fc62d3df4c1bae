"""The engine, and the door by which programs of somebody's own use it: `from engine import serve`.

The names of the door are looked up when they are first asked for. They lie above this package, which knows nothing of
them otherwise; importing one of its modules loads neither agents nor a server.
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

if not TYPE_CHECKING:  # a checker would take any name for one of the door

    def __getattr__(name: str) -> object:
        if name in ("serve", "serve_async"):
            from server import program

            return getattr(program, name)
        if name in __all__:
            from agents.code import authoring

            return getattr(authoring, name)
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
