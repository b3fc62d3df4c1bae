"""`make fuzz`: schemathesis reads `GET /openapi.json` and sends requests that fit it, and some that do not.

With the operator's key, and with a tenant's keys of each scope: each is described what it may call. Whatever the server
answers has a status, a type and a shape that the description names, what fits is taken (`REFUSED_FOR` has the
exceptions), what does not is refused, nothing that needs a key is answered without one, and none is a fault of the
server. Left out: /mcp, which the suite of MCP tests.

schemathesis brings 30 packages of its own, so that it has an environment of its own (`make fuzzers`).
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = "the-operators-own-key"
# Of these, what fits may be refused, with a 400 for a reason that no schema says.
REFUSED_FOR: Mapping[str, str] = {
    "PUT /agents/{name}": "the script has to load",
    "PUT /tools/{name}": "the script has to load",
    "POST /agents/{name}/prompt": "each agent has arguments of its own, in an operation of its own",
    "POST /tools/{name}": "each tool has parameters of its own, in an operation of its own",
    "POST /tools/search": "a query is not empty",
    "POST /tools/get": "an id is not empty",
    "GET /audit": "`before` is of an answer of this server",
    "POST /admin/tenants/{name}/keys": "`expires` is in the future",
    "PUT /admin/tenants/{name}/secrets/{secret}": "`hosts` are rules",
}
# Who asks: the scopes of a tenant's key, or none for the operator's.
KEYS: Mapping[str, tuple[str, ...]] = {
    "operator": (), "use": ("use",), "publish": ("publish",), "admin": ("admin",), "all": ("use", "publish", "admin"),
}  # fmt: skip
# The quotas of that tenant: with less, most answers would be 429.
QUOTAS = {"requests_per_second": 100_000, "burst": 100_000, "cpu_seconds_per_minute": 100_000}
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
def served(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The address of a server that asks for keys, and the keys; when the block ends it is stopped, and ended well."""
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
            yield url, _keys(url)
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(30)
        assert status == 0, f"the server ended with {status}"


def _keys(url: str) -> dict[str, str]:
    """The keys of `KEYS`; a tenant's are made, and so is what it may read: two versions, of which one is a canary."""
    _ask(url, OPERATOR, "POST", "/admin/tenants", {"name": "acme", "quotas": QUOTAS})
    path = "/admin/tenants/acme/keys"
    made = {who: _ask(url, OPERATOR, "POST", path, {"scopes": scopes})["key"] for who, scopes in KEYS.items() if scopes}
    for root, source in (("agents", ECHO), ("tools", ADD)):
        for version, share in (("1", ""), ("2", "?percent=50")):
            body = {"version": version, "main": "a.lua", "files": {"a.lua": source}}
            _ask(url, made["publish"], "PUT", f"/{root}/own{share}", body)
    return {"operator": OPERATOR, **made}


def _ask(url: str, key: str, method: str, path: str, body: object) -> Any:
    head = {"X-API-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), head, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def _write_exceptions(file: Path) -> None:
    """The settings of schemathesis with `REFUSED_FOR`; all its checks are on, else."""
    skips = (
        f'[[operations]]\ninclude-name = "{name}"\nchecks.positive_data_acceptance.enabled = false\n'
        for name in REFUSED_FOR
    )
    file.write_text("\n".join(skips))


def requests_of(program: str, url: str, key: str, examples: int, seed: int, folder: Path) -> tuple[int, str]:
    """How many requests were sent, and what was found: "" where nothing was.

    An example is some 45 requests; from ten examples on, 1,400 more try each parameter at its bounds.
    """
    config = folder / "schemathesis.toml"
    _write_exceptions(config)
    phases = "fuzzing" if examples < 10 else "coverage,fuzzing"
    done = subprocess.run(
        [
            program, "--config-file", str(config), "run", f"{url}/openapi.json", "-H", f"X-API-Key: {key}",
            "--exclude-path", "/mcp", "--phases", phases, "-n", str(examples), "--seed", str(seed),
            "--continue-on-failure", "--warnings", "off",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    sent = re.search(r"([\d,]+) generated", done.stdout)
    return int(sent[1].replace(",", "")) if sent else 0, "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    """Fuzz until so many requests were sent, of every key some. Exit code 1 for a finding, 2 without schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=30, help="of each operation, with each key and seed")
    asked = parser.parse_args()
    program = schemathesis()
    if program is None:
        print("schemathesis is not installed: `make fuzzers`", file=sys.stderr)
        return 2
    sent, seed = Counter[str](), asked.seed
    while sent.total() < asked.requests:
        for who in KEYS:
            with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (url, keys):
                more, found = requests_of(program, url, keys[who], asked.examples, seed, Path(folder))
            sent[who] += more
            print(f"{sent.total():,} requests, seed {seed}: {who} {more:,}", flush=True)
            if found or not more:
                print(found)
                return 1
        seed += 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
