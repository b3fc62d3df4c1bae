"""Runs many command lines with broken streams, each in a process of its own that has imported everything before.

Reads a JSON list of jobs `{words, stdin, fault}` from standard input and writes one of `{code, err}`.
"""

import contextlib
import gc
import io
import json
import os
import sys
import tempfile
from importlib import import_module

FAULTS = ("closed stdout", "full stdout", "unread stdout", "closed stderr", "full stderr", "closed stdin", "all closed")


def put(descriptor: int, number: int) -> None:
    os.dup2(descriptor, number)
    os.close(descriptor)


def break_streams(fault: str) -> None:
    """Do what a shell does before it starts a program, and what the interpreter does when it finds it so."""
    closed = {"closed stdin": [0], "closed stdout": [1], "closed stderr": [2], "all closed": [0, 1, 2]}.get(fault, [])
    for number in closed:
        os.close(number)
        name = ("stdin", "stdout", "stderr")[number]
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)
    if fault in ("full stdout", "full stderr"):
        put(os.open("/dev/full", os.O_WRONLY), 1 if fault == "full stdout" else 2)
    if fault == "unread stdout":
        reading, writing = os.pipe()
        os.close(reading)
        put(writing, 1)


def run(job: "dict[str, str]") -> "dict[str, object]":
    from cli.main import main

    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(job["stdin"].encode())
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            break_streams(job["fault"])
            sys.argv = ["engine", *job["words"]]
            main()
            os._exit(99)  # main never returns
        _, status = os.waitpid(pid, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return {"code": os.waitstatus_to_exitcode(status), "out": texts[0], "err": texts[1]}


if __name__ == "__main__":
    jobs = json.loads(sys.stdin.read())
    import agents.service  # noqa: F401
    import control.moving  # noqa: F401
    from cli.application import COMMANDS
    from cli.application import run as once

    with contextlib.redirect_stdout(io.StringIO()):
        once(["stats"])
        once(["tenant", "list"])
    for where, _ in COMMANDS.values():
        import_module(f"cli.commands.{where.partition(':')[0]}")
    gc.collect()
    gc.freeze()  # the children share these pages; a collection would write to each of them
    json.dump([run(job) for job in jobs], sys.stdout)
