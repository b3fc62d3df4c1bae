"""What a worker with machine code of its own sends: frames that the prelude never would.

`FRAMES` is code that runs in the worker in place of the called function: `send(message...)` writes whole frames, `raw`
bytes; `run` is what it was asked for.
"""

from sandbox.wire.limits import MIB
from supervisor.attack import ANSWER, answers

_PACK = "pack = msgspec.msgpack.encode; M = 1 << 20; n = run.output_bytes - 100; DONE = Done(pack({'system': 'x'})); "
_PACK += "ask = lambda message: (send(message), channel.receive(), DONE)[2]; "
# Containers as msgpack has them, filled with so many copies of a unit.
_LIST = "many = lambda unit, n: b'\\xdd' + (n // len(unit)).to_bytes(4, 'big') + unit * (n // len(unit)); "
_CODE: dict[str, tuple[str, int]] = {
    # name -> code, bytes that it sends
    "an answer of empty tables": ("return Done(many(b'\\x80', n))", ANSWER),
    "an answer of empty lists": ("return Done(many(b'\\x90', n))", ANSWER),
    "an answer of small numbers": ("return Done(many(b'\\x01', n))", ANSWER),
    "an answer of fractions": ("return Done(many(pack(0.1), n))", ANSWER),
    "an answer of one-key tables": ("return Done(many(pack({'a': 1}), n))", ANSWER),
    "an answer of lists in lists": ("return Done(many(pack([[[[[[[]]]]]]]), n))", ANSWER),
    "an answer of short texts": ("return Done(many(pack('ab'), n))", ANSWER),
    "an answer of one text of NULs": ("return Done(pack({'system': '\\0' * (n - 64)}))", ANSWER),
    "an answer of a list that claims more than it has": (
        "return Done(b'\\xdd\\xff\\xff\\xff\\xff' + b'\\x80' * n)",
        ANSWER,
    ),
    "a call of an unknown name": ("return ask(HostCall('no.such', many(b'\\x80', M)))", MIB),
    "a call by a long name": ("return ask(HostCall('x' * M, b'\\x80'))", MIB),
    "a call by a long name of large letters": ("return ask(HostCall('\\U0001f600' * (n // 4), b'\\x80'))", ANSWER),
    "a call with a million values": ("return ask(HostCall('context.search', many(b'\\x80', n)))", ANSWER),
    "a call with unknown fields": (
        "return ask(HostCall('context.search', b'\\x82' + pack('query') + pack('x') + pack('z') + many(b'\\x80', n)))",
        ANSWER,
    ),
    "a search for a text of quotes": ("return ask(HostCall('context.search', pack({'query': '\"' * n})))", ANSWER),
    "a search for many words": (
        "return ask(HostCall('context.search', pack({'query': 'a b ' * (n // 4)})))",
        ANSWER,
    ),
    "calls beyond number": ("return ask(HostCalls(tuple((i, 'a', b'') for i in range(1, M))))", 8 * MIB),
    "a failure of escapes": ("return Failed('script_error', '\\\\n' * (n // 4), '')", ANSWER // 2),
    "a failure's traceback of escapes": ("return Failed('script_error', 'x', '\\\\u0041' * (n // 7))", ANSWER),
    "a failure of percents": ("return Failed('script_error', '%41' * (n // 4), '')", ANSWER),
    "progress with a long text": (
        "send(Progress(0.5, '\\\\n' * (n // 4))); return DONE",
        ANSWER // 2,
    ),
    "a log line of escapes": (
        "send(Log('info', '\\\\n' * (run.log_bytes // 2 - 50))); return DONE",
        MIB,
    ),
    "lines of nothing": (
        "raw(frame(Log('info', '')) * (run.log_bytes // 16)); return DONE",
        MIB,
    ),
    "progress as often as permitted": (
        "raw(frame(Progress(0.5, 'x' * 1000)) * 999); return DONE",
        MIB,
    ),
    "a frame in pieces of a hundred bytes": (
        "f = frame(Done(pack({'system': 'x' * M})));\n"
        "    for at in range(0, len(f), 100): raw(f[at:at + 100])\n"
        "    return DONE",
        MIB,
    ),
}

# Whatever the call's arguments say: a kind of frame, a unit of msgpack in hexadecimal, bytes.
_ANY = """field, unit, size = run.args.partition(b"any:")[2].decode("latin-1").split(":")[:3]
    said = many(bytes.fromhex(unit), min(int(size), n))
    if field == "done":
        return Done(said)
    if field == "search":
        return ask(HostCall("context.search", said))
    return ask(HostCalls(tuple((i, "context.search", said[: n // 70]) for i in range(1, 65))))"""

FRAMES = {name: f"{_PACK}{_LIST}{code}" for name, (code, _) in _CODE.items()}
FRAMES["any"] = f"{_PACK}{_LIST}\n    {_ANY}"

ATTACKS = tuple(
    answers(
        name,
        ("answer",) if name.startswith("an answer") else ("frame",),
        "return { system = 'described' }",
        size,
        head=f"--! {name}\n",
        may_violate=True,
        grants={"secrets": ["TOKEN"]},
    )
    for name, (_, size) in _CODE.items()
)
