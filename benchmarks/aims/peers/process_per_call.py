"""The stand-alone Lua interpreter, started for every call: `plain`, or under bubblewrap (`bwrap`).

The script requests the document with a line on standard output and reads it from standard input: title, length, body.
"""

import subprocess
import sys

from benchmarks.aims.peers import turns

SCRIPT = """
local id = ...
io.write("get ", id, "\\n") io.flush()
local title, size = io.read("l"), io.read("n") io.read("l")
local body = io.read(size)
io.write("Read ", title, "\\n", #body, "\\n")
"""

# A root with the interpreter's files only; --unshare-all unshares every namespace, including the network.
BWRAP = (
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv",
    "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--proc", "/proc",
)  # fmt: skip


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=10, check=True)
    return (done.stdout or done.stderr).split("  ")[0].strip()


def serve() -> None:
    job = turns.read_job()
    confined = sys.argv[1] == "bwrap"
    interpreter = ["lua5.4", "-e", f"(function(...) {SCRIPT} end)('{job.document_id}')"]
    command = [*BWRAP, *interpreter] if confined else interpreter
    body = job.document["body"].encode()
    document = b"%s\n%d\n%s" % (job.document["title"].encode(), len(body), body)

    def call() -> None:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            asked = process.stdout.readline()
            if asked != b"get %s\n" % job.document_id.encode():
                raise RuntimeError(f"{command[0]} said {asked!r}")
            process.stdin.write(document)
            process.stdin.close()
            system, characters = process.stdout.read().decode().splitlines()
        job.check(system, int(characters))

    version = _said(["lua5.4", "-v"])
    turns.serve_threads(f"{_said(['bwrap', '--version'])}, {version}" if confined else version, call)


if __name__ == "__main__":
    turns.main(serve)
