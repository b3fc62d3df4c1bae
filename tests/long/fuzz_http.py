"""`make fuzz`: schemathesis reads `GET /openapi.json` and sends requests that fit it, and some that do not.

Whatever the server answers has a status, a type and a shape that the description names, and none is a fault of the
server. Left out: /mcp, which the suite of MCP tests; and that whatever fits is accepted: a schema cannot say that a
package's script has to load, or that a name is taken.

schemathesis brings 30 packages of its own, so that it has an environment of its own (`make fuzzers`).
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = "the-operators-own-key"
LEFT_OUT = "positive_data_acceptance,ignored_auth"
CONFIG = f"""
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 1
reserve = 0
[tenants]
enabled = true
operator_key = "{OPERATOR}"
secrets_key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
[agents.greeter]
description = "Greets"
system_prompt = "Hello"
[agents.script.echo]
path = "echo.lua"
[tools.script.add]
path = "add.lua"
"""
ECHO = """
agent = { arguments = { { name = "who", required = true }, { name = "mood", enum = { "kind", "curt" } } } }
function agent.resolve(args) return { system = "for " .. tostring(args.who) } end
"""
ADD = """
tool = { parameters = { type = "object", required = { "a" }, properties = {
  a = { type = "integer", minimum = 0, maximum = 9 }, b = { type = "string", maxLength = 5 } } } }
function tool.execute(params) return { sum = params.a + 1 } end
"""


def schemathesis() -> str | None:
    """The program, where it is installed."""
    own = ROOT / ".fuzzers" / "bin" / "schemathesis"
    return str(own) if own.exists() else shutil.which("schemathesis")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server that asks for keys; when the block ends it is stopped, and ended well."""
    for name, text in (("engine.toml", CONFIG), ("echo.lua", ECHO), ("add.lua", ADD)):
        (folder / name).write_text(text)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "serve", "--bind", "127.0.0.1:0", "--config", "engine.toml"],
        cwd=folder, env=environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        url = next((found[0] for line in server.stdout if (found := re.search(r"http://127[\d.:]+", line))), None)
        try:
            assert url is not None, "the server has not started"
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(30)
        assert status == 0, f"the server ended with {status}"


def requests_of(program: str, url: str, examples: int, seed: int, folder: Path) -> tuple[int, str]:
    """How many requests were sent, and what was found: "" where nothing was.

    An example is some 45 requests; from ten examples on, 1,400 more try each parameter at its bounds.
    """
    phases = "fuzzing" if examples < 10 else "coverage,fuzzing"
    done = subprocess.run(
        [
            program, "run", f"{url}/openapi.json", "-H", f"X-API-Key: {OPERATOR}", "--exclude-path", "/mcp",
            "--exclude-checks", LEFT_OUT, "--phases", phases, "-n", str(examples), "--seed", str(seed),
            "--continue-on-failure", "--warnings", "off",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    sent = re.search(r"([\d,]+) generated", done.stdout)
    return int(sent[1].replace(",", "")) if sent else 0, "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    """Fuzz until so many requests were sent. Exit code 1 for a finding, 2 without schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    program = schemathesis()
    if program is None:
        print("schemathesis is not installed: `make fuzzers`", file=sys.stderr)
        return 2
    sent, seed = 0, asked.seed
    while sent < asked.requests:
        with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url:
            more, found = requests_of(program, url, 100, seed, Path(folder))
        sent, seed = sent + more, seed + 1
        print(f"{sent:,} requests, last seed {seed - 1}", flush=True)
        if found or not more:
            print(found)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
