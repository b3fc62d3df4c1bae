"""A real server, an attack, and what it cost: the supervisor's CPU time in one piece, its memory, and who paid.

CPU time on a machine that others use as well is not what it is on an idle core: caches and the second half of a core
are shared. The target times a fixed piece of work at both ends of each measurement, and the bound grows with it. What
is above the bound is attacked again, and the least of the tries counts: noise is not above it each time.
"""

import json
import math
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
import warm_start
from machine import REFERENCE_S

from benchmarks.aims.harness import started
from benchmarks.targets import client
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed, Response
from engine.errors import ungrouped
from engine.work import GROWTH, LOOP_S
from sandbox.wire.limits import MIB
from supervisor.attack import Ask, Attack, Place, Plan

# An answer of 16 MiB of control characters is six times that as JSON, and MCP says it twice.
client.MAX_BODY_BYTES = 512 * MIB
OPERATOR = "the-operator-of-a-server-that-is-attacked"
SECRET = "a-secret-that-every-text-is-searched-for"
TARGET = Path(__file__).with_name("target.py")
EYE = "eye.sock"
TIMEOUT_S = 30.0
TRIES = 3
# Clocks are read a little late, and the probe's own thread runs beside: a tenth, and the watch's own error.
MARGIN, ERROR_S = 1.1, 0.005
# What the first of anything takes: an arena of the allocator, a thread's stack, a compiled module.
BASE_BYTES = 12 * MIB
# Of CPU time in one piece above this, at least this share is on the tenant's account; and of all that the supervisor's
# threads used, above the other figure: what reading and writing sockets and the store costs is the engine's. Both are
# those of the reference machine.
PAID_ABOVE_S, PAID_SHARE = 0.02, 0.5
ALL_PAID_ABOVE_S, ALL_PAID_SHARE = 0.25, 0.25

CONFIG = f"""
[server]
graceful_timeout_s = 0.5
[db]
path = "knowledge.sqlite"
[tenants]
enabled = true
operator_key = "{OPERATOR}"
secrets_key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
[tenants.total]
requests_per_second = 100000
burst = 100000
[sandbox]
workers = 2
reserve = 1
[agents.script.echo]
path = "echo.lua"
tenants = ["*"]
[tools.script.lists]
path = "lists.lua"
tenants = ["*"]
"""
SCRIPTS = {
    "echo.lua": "agent = { tools = {} }\nfunction agent.resolve(args) return { system = 'here' } end",
    "lists.lua": """
tool = { description = "Takes a list", parameters = {{name = "a", type = "array", items = {type = "string"}}} }
function tool.execute(params) return { count = params.a and #params.a or 0 } end""",
}
# The attacker is held by nothing but what bounds one piece of work; quotas would end a test after a few of them.
FREE = {
    "requests_per_second": 100_000, "burst": 100_000, "cpu_seconds_per_minute": 100_000,
    "host_calls_per_minute": 1_000_000,
    "stored_bytes": 1 << 40,
}  # fmt: skip


class Hung(Exception):
    """The server did not answer in time, or not at all any more. It has to be started again."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an attack did. Times in seconds of the supervisor's CPU; `slow` is how much slower than the reference
    machine this one was meanwhile; `held_s` is for how long other threads kept the interpreter.
    """

    name: str
    size: int
    kept_s: float = math.inf
    held_s: float = 0.0
    cpu_s: float = math.inf
    all_s: float = 0.0
    growth: int = 0
    paid_s: float = 0.0
    slow: float = 1.0
    answers: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def in_one_piece_s(self) -> float:
        """The longest time in which nothing else was served, as it would be on the reference machine."""
        return max(self.kept_s, self.held_s) / self.slow

    def problems(self) -> list[str]:
        """Which bounds it did not keep."""
        found = list(self.wrong)
        if self.kept_s == math.inf:
            return [*found, f"no answer within {TIMEOUT_S:g} s"]
        if self.in_one_piece_s > LOOP_S * MARGIN + ERROR_S:
            found.append(f"kept the loop for {self.in_one_piece_s * 1e3:.0f} ms of CPU; the bound is {LOOP_S * 1e3:g}")
        if self.growth > GROWTH * self.size + BASE_BYTES:
            found.append(f"grew by {self.growth / MIB:.0f} MiB, {self.growth / max(1, self.size):.0f} times its size")
        if self.kept_s / self.slow > PAID_ABOVE_S and self.paid_s < PAID_SHARE * self.kept_s:
            found.append(f"{self.kept_s * 1e3:.0f} ms in one piece, of which the tenant paid {self.paid_s * 1e3:.0f}")
        if self.all_s / self.slow > ALL_PAID_ABOVE_S and self.paid_s < ALL_PAID_SHARE * self.all_s:
            found.append(f"{self.all_s * 1e3:.0f} ms in all, of which the tenant paid {self.paid_s * 1e3:.0f}")
        return found

    def line(self) -> str:
        """For people."""
        return (
            f"{self.name}: {self.size} bytes, {self.kept_s * 1e3:.0f} ms in one piece (held {self.held_s * 1e3:.0f}, "
            f"loop {self.cpu_s * 1e3:.0f}, all {self.all_s * 1e3:.0f}, machine {self.slow:.2f}), "
            f"+{self.growth / MIB:.1f} MiB, paid {self.paid_s * 1e3:.0f} ms, "
            f"{' '.join(dict.fromkeys(self.answers))[:60]}"
        )


@dataclass(slots=True)
class Target:
    """A server that is attacked, with a key of the attacker (`hostile`) and one of another tenant (`bystander`)."""

    address: Address
    process: trio.Process
    eye: trio.SocketStream
    silent_port: int
    keys: dict[str, str] = field(default_factory=dict)
    strikes: int = 0
    # The attacker's tenant: another one for each attack, so that no attack pays, or waits, for those before it.
    tenant: str = "hostile"

    async def look(self, command: str) -> dict[str, Any]:
        """What the target tells of itself: see `target.Eye`. Raises Hung."""
        data = b""
        try:
            with trio.fail_after(TIMEOUT_S):
                await self.eye.send_all(command.encode())
                while not data.endswith(b"\n"):
                    if not (part := await self.eye.receive_some(4096)):
                        raise Hung("the server has ended")
                    data += part
        except (trio.TooSlowError, trio.BrokenResourceError):
            raise Hung(f"the server did not look up within {TIMEOUT_S:g} s") from None
        return dict(json.loads(data))

    async def ask(self, ask: Ask, key: str = "hostile") -> Response:
        """One request on a connection of its own. Raises Hung, Failed."""
        asking = Client(self.address)
        headers = (("x-api-key", OPERATOR if ask.operator else self.keys[key]), *ask.headers)
        try:
            with trio.fail_after(TIMEOUT_S):
                body = None if ask.method == "GET" else ask.body
                path = ask.path.replace("tenant=hostile", f"tenant={self.tenant}")
                return await asking.request(ask.method, path, body, headers)
        except trio.TooSlowError:
            raise Hung(f"{ask.method} {ask.path} was not answered within {TIMEOUT_S:g} s") from None
        finally:
            asking.close()

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        """An answer for the operator, which must be a success."""
        answer = await self.ask(Ask(method, path, json.dumps(body or {}).encode(), operator=True))
        assert answer.status < 300, (path, answer.status, answer.body[:300])
        return json.loads(answer.body)

    async def move_in(self, name: str, scopes: list[str], quotas: Mapping[str, float], whose: str = "") -> None:
        """A tenant, and a key of it, which is kept under its name or another."""
        await self.operator("POST", "/admin/tenants", {"name": name, "quotas": quotas})
        key = await self.operator("POST", f"/admin/tenants/{name}/keys", {"scopes": scopes})
        self.keys[whose or name] = key["key"]

    async def paid_s(self) -> float:
        """What the attacker's CPU account shows."""
        quotas = (await self.operator("GET", "/limits?tenant=hostile"))["quotas"]
        return float(quotas["cpu_seconds_per_minute"]["used"])

    def place(self) -> Place:
        """Where the next attack happens."""
        self.strikes += 1
        return Place(self.strikes, self.silent_port)

    async def strike(self, attack: Attack) -> Cost:
        """Attack once, as a new tenant. Raises Hung."""
        await self.move_in(f"hostile-{self.strikes}", ["use", "publish", "admin"], FREE, "hostile")
        self.tenant = f"hostile-{self.strikes}"
        secret = {"value": SECRET, "hosts": ["api.example.com"]}
        await self.operator("PUT", f"/admin/tenants/{self.tenant}/secrets/TOKEN", secret)
        return await self.measure(attack.name, attack.plan(self.place()), attack.may_violate)

    async def measure(self, name: str, plan: Plan, may_violate: bool = False) -> Cost:
        """Carry out a plan and tell what it cost. Raises Hung."""
        said: list[str] = []
        wrong: list[str] = []

        async def one(ask: Ask) -> None:
            try:
                answer = await self.ask(ask)
            except Failed as failed:
                wrong.append(f"{ask.method} {ask.path} was not answered: {failed}")
            else:
                said.append(outcome(answer))
                if found := not_allowed(answer, may_violate):
                    wrong.append(f"{ask.method} {ask.path}: {found}")

        for ask in plan.before:  # one that is refused is a defence: then the rest meets nothing
            await one(ask)
        paid_s = await self.paid_s()
        begun = await self.look("b")
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for ask in plan.asks:
                    nursery.start_soon(one, ask)
        ended = await self.look("e")
        paid_s = await self.paid_s() - paid_s
        wrong += await self.lives()
        return Cost(
            name, plan.size, ended["kept_s"], ended["held_s"], ended["cpu_s"], ended["all_s"], ended["growth"], paid_s,
            max(1.0, max(begun["reference_s"], ended["reference_s"]) / REFERENCE_S), tuple(said), tuple(wrong),
        )  # fmt: skip

    async def lives(self) -> list[str]:
        """What does not work any more for others. Raises Hung."""
        found = []
        health = await self.ask(Ask("GET", "/health", operator=True))
        if health.status != 200:
            found.append(f"/health afterwards: {health.status} {health.body[:200]!r}")
        run = await self.ask(Ask("POST", "/agents/echo/prompt"), "bystander")
        if run.status != 200 or json.loads(run.body)["system"] != "here":
            found.append(f"another tenant's run afterwards: {run.status} {run.body[:200]!r}")
        return found


def outcome(answer: Response) -> str:
    """An answer in a word or two: its status, and the code of its error."""
    try:
        said = json.loads(answer.body)
        code = said["error"]["code"] if isinstance(said, dict) and "error" in said else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        code = ""
    return f"{answer.status} {code}".strip()


def not_allowed(answer: Response, may_violate: bool) -> str:
    """Why an answer is none that an attack may get. Served, or refused with a typed error: nothing else."""
    said = outcome(answer)
    if answer.status >= 400 and said == str(answer.status):
        return f"{said} without an envelope: {answer.body[:200]!r}"
    ours = ("internal", "-32603", *(() if may_violate else ("policy_violation", "worker_lost")))
    return f"{said}: {answer.body[:200]!r}" if said.endswith(ours) else ""


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A port that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        yield server.getsockname()[1]


@asynccontextmanager
async def target(config: str = "", **scripts: str) -> AsyncIterator[Target]:
    """A server to attack, in a process of its own, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="engine-attacked-") as name:
        folder = Path(name)
        (folder / "engine.toml").write_text(CONFIG + config, encoding="utf-8")
        for file, source in (SCRIPTS | {f"{each}.lua": source for each, source in scripts.items()}).items():
            (folder / file).write_text(source, encoding="utf-8")
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-c", _PROGRAM, str(folder)]
            async with started(command, log.fileno(), warm_start.open_process) as server, silent_server() as port:
                process = server.process
                async with await trio.open_unix_socket(folder / EYE) as eye:
                    found = Target(server.address, process, eye, port)
                    await found.move_in("bystander", ["use"], {"requests_per_second": 10_000, "burst": 10_000})
                    assert await found.lives() == []
                    try:
                        yield found
                    finally:
                        if process.returncode is None and await _is_stuck(found):
                            process.kill()


# The folders that the target imports from; it is a program of its own.
_PATHS = [str(TARGET.parents[levels]) for levels in (1, 2)]
_PROGRAM = f"import runpy, sys; sys.path[:0] = {_PATHS!r}; runpy.run_path({str(TARGET)!r}, run_name='__main__')"


async def _is_stuck(found: Target) -> bool:
    with trio.CancelScope(shield=True):  # safe to shield: bounded
        try:
            with trio.fail_after(1):
                await found.look("l")
        except (Hung, trio.TooSlowError):
            return True
    return False


class Driver:
    """Attacks one after the other; a server that hangs is replaced by another. `cost` takes the least of some tries."""

    def __init__(self, config: str = "") -> None:
        self._config = config
        self._block: Any = None
        self._target: Target | None = None

    async def __aenter__(self) -> "Driver":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.replace()

    async def target(self) -> Target:
        """The server at hand."""
        if self._target is None:
            self._block = target(self._config)
            self._target = await self._block.__aenter__()
        return self._target

    async def replace(self) -> None:
        """Be done with the server at hand."""
        if self._target is not None:
            block, self._block, self._target = self._block, None, None
            await block.__aexit__(None, None, None)

    async def once(self, attack: Attack) -> Cost:
        """What an attack costs, the first time. A server that hangs costs without end."""
        try:
            return await (await self.target()).strike(attack)
        except (Hung, Failed) as error:
            await self.replace()
            size = attack.plan(Place(0, 1)).size
            return Cost(attack.name, size, wrong=(str(error),))

    async def cost(self, attack: Attack, tries: int = TRIES) -> Cost:
        """The first try that keeps every bound, else the one that kept the loop for the shortest time."""
        costs: list[Cost] = []
        for _ in range(tries):
            costs.append(await self.once(attack))
            if not costs[-1].problems():
                return costs[-1]
            if costs[-1].in_one_piece_s > 10 * LOOP_S:
                break  # that is no noise
        return min(costs, key=lambda each: each.in_one_piece_s)


async def problems(attacks: Iterable[Attack], seen: Callable[[Cost], None] = lambda cost: None) -> list[str]:
    """Attack with all of these, one after the other; which kept no bound, and how."""
    found = []
    async with Driver() as driver:
        for attack in attacks:
            cost = await driver.cost(attack)
            seen(cost)
            found += [f"{cost.name}: {problem}" for problem in cost.problems()]
    return found
