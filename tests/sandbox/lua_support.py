"""A Lua state driven in the test process, for scripts that mean no harm: what a worker does, without the worker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sandbox.natives import answer, warm_up
from sandbox.natives.files import Files
from sandbox.vm import VM, Code, Prelude
from sandbox.wire.messages import Run, decode_calls

PRELUDE = Prelude()
warm_up()
MIB = 1 << 20

# Answers one host call: whether it succeeded, and its value or error text.
Host = Callable[[str, Any], tuple[bool, Any]]


@dataclass
class Ran:
    """How a script ended, and what it said on its way."""

    kind: str
    value: Any = None
    message: str = ""
    traceback: str = ""
    replaced: int = 0
    calls: list[tuple[str, Any]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    progress: list[tuple[float, str]] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]


def _echo(name: str, arguments: Any) -> tuple[bool, Any]:
    return True, arguments


def run_source(
    source: str | bytes,
    *args: Any,
    host: Host = _echo,
    config: Any = None,
    method: str = "resolve",
    root: str = "agent",
    memory_bytes: int = 64 * MIB,
    output_bytes: int = 1 * MIB,
    log_bytes: int = 64 * 1024,
    value_depth: int = 64,
    progress: int = 1000,
    timeout_s: float = 30,
    tools: tuple[str, ...] = (),
    compiled: bool = False,
    given: bool = True,
    files: Files | None = None,
) -> Ran:
    """Run a whole script, as text or as a worker keeps it after its first run. Host calls are answered by `host`.

    `given` is whether it gets the libraries that it names ahead, as in a worker.
    """
    vm = VM(PRELUDE)
    encode = msgspec.msgpack.encode
    source = source if isinstance(source, bytes) else source.encode()
    caller = encode({"tenant": "t", "agent": "a", "run_id": "r"}) if b"caller" in source else b""
    code = PRELUDE.compile(source, "t.lua", memory_bytes, files) if compiled else PRELUDE.text(source, files)
    code = code if given else Code(code.script, code.mode)
    vm.begin(
        Run(
            source=source,
            digest="",
            chunk_name="t.lua",
            root=root,
            method=method,
            args=b"".join(map(encode, (list(args), {} if config is None else config, list(tools), {}))) + caller,
            memory_bytes=memory_bytes,
            output_bytes=output_bytes,
            log_bytes=log_bytes,
            value_depth=value_depth,
            progress=progress,
            timeout_s=timeout_s,
        ),
        code,
    )
    ran = Ran("")
    waiting: list[tuple[int, str, bytes]] = []
    step = vm.step()
    while True:
        match step:
            case ("calls", packed, _):  # the last that was asked is answered first
                waiting += decode_calls(packed)
                number, called, given = waiting.pop()
                ran.calls.append((called, msgspec.msgpack.decode(given)))
                ok, value = host(*ran.calls[-1])
                vm.put(encode(value) if ok else value.encode())
                step = vm.step(ok, number)
            case ("call", name, arguments) if name in vm.natives:
                ok, value = answer(vm.natives[name], arguments)
                vm.put(value)
                step = vm.step(ok)
            case ("call", name, arguments):
                call = (name.decode(), msgspec.msgpack.decode(arguments))
                ran.calls.append(call)
                ok, value = host(*call)
                vm.put(encode(value) if ok else value.encode())
                step = vm.step(ok)
            case ("log", level, text):
                ran.lines.append((level.decode(), text.decode()))
                step = vm.step()
            case ("progress", fraction, text):
                ran.progress.append((fraction, text.decode()))
                step = vm.step()
            case ("done", value, replaced):
                ran.kind, ran.value, ran.replaced = "done", msgspec.msgpack.decode(value), replaced
                return ran
            case ("memory", _, _):
                ran.kind = "memory"
                return ran
            case _:
                ran.kind, ran.message, ran.traceback, ran.replaced = vm.why()
                return ran


def run(body: str, *args: Any, **how: Any) -> Ran:
    """Run the body of `agent.resolve(...)`; `context` is a local of it, `...` are the arguments before it."""
    if how.get("root") == "connector":  # of its arguments, the first is in its context, and the second is its config
        source = "connector = {} function connector.scan(...) local context = select(2, ...); " + body + "\nend"
        source = source.replace("{...}", "(...)")
        return run_source(source, None, list(args), method="scan", **how)
    source = "agent = {} function agent.resolve(...) local context = select(select('#', ...), ...); " + body + "\nend"
    return run_source(source, *args, **how)


def value_of(body: str, *args: Any, **how: Any) -> Any:
    """What the body returns; it must end well."""
    ran = run(body, *args, **how)
    assert ran.kind == "done", (ran.kind, ran.message)
    return ran.value


def error_of(body: str, *args: Any, **how: Any) -> str:
    """The text of the error that ends the body."""
    ran = run(body, *args, **how)
    assert ran.kind == "script_error", (ran.kind, ran.value)
    return ran.message
