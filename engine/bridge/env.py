"""`env.get`: environment variables of the engine's process that the operator granted by name."""

import json
import os
from collections.abc import Mapping

import msgspec
import trio

from engine.bridge import HostContext, HostFunction
from engine.bridge.families import Family

GET = "env.get"
GRANTS = frozenset({GET})
# Bound on a name that was not granted, as it is logged.
_SHOWN_CHARACTERS = 64


class GetArguments(msgspec.Struct):
    name: str


def functions(environ: Mapping[str, str]) -> tuple[HostFunction, ...]:
    """The family. Granted names are looked up in `environ` at the time of the call."""

    async def get(context: HostContext, arguments: GetArguments) -> str | bytes | None:
        await trio.lowlevel.checkpoint()
        name = arguments.name
        if name not in context.request.authority.env:
            # The same text whether the name is set or not: which names exist is not revealed.
            context.log("warn", not_granted(name, context.request.name))
            return None
        value = environ.get(name)
        return None if value is None else as_text(value)

    return (HostFunction(GET, GetArguments, get),)


def not_granted(name: str, script: str) -> str:
    """The log line for a name that the script may not see, with the key that would grant it."""
    if len(name) > _SHOWN_CHARACTERS:
        name = name[:_SHOWN_CHARACTERS] + "…"
    quoted = json.dumps(name, ensure_ascii=False)
    return f"{GET}: {quoted} is not granted, so it is nil; env = [{quoted}] in the entry of {script!r} grants it"


def as_text(value: str) -> str | bytes:
    """The value as the Lua codec takes it: text, or its bytes if they are not UTF-8.

    Python decodes the environment with `surrogateescape` (PEP 383): such bytes are lone surrogates in `value`.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return os.fsencode(value)
    return value


FAMILY = Family.plain(lambda host: functions(host.environ))
