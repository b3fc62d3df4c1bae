"""What the server's tests share: a service made of plain Python, a real server on a real socket, one look at errors."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import trio

from agents.agent import AgentArgument, AgentInfo, AgentPrompt, Call, PromptMessage, Resolved
from agents.changes import Changes
from agents.documents import Documents
from agents.tool import Called, ToolInfo
from engine.config import Config, LoadedConfig, ServerConfig
from engine.errors import Code, LimitUse, Problem
from engine.quota import RequestsLeft
from engine.tenant import BoundLimits, Tenant, bind_limits
from server.app import listen, open_app, serve_app
from server.http.guard import Guard
from server.mcp.endpoint import Mcp

ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
NULLS = {"a": None, "list": [None, {"b": None}]}


@dataclass
class Layer:
    name: str = "process"
    state: str = "active"
    detail: str = ""
    required: bool = True


@dataclass
class Failed:
    kind: str = "agent"
    name: str = "broken"
    path: Path | None = Path("/root/agents/broken.lua")
    line: int | None = 3
    outcome: str = "script_error"
    message: str = "unexpected symbol near 'end'"


@dataclass
class FakeEngine:
    layers: tuple[Layer, ...] = (Layer(), Layer("landlock", "inactive", "the kernel has no Landlock"))
    draining: bool = False
    drained: bool = False

    trouble: str | None = None
    workers: int = 2
    left: RequestsLeft | None = None

    def health(self) -> dict[str, Any]:
        layers = [asdict(layer) for layer in self.layers]
        return {"workers": {"idle": self.workers}, "queued": 0, "trouble": self.trouble, "layers": layers}

    def limits_for(self, asked: dict[str, float], tenant: Tenant) -> BoundLimits:
        return bind_limits(asked, tenant, {}, {})

    def work_for(self, tenant: Tenant) -> AbstractContextManager[None]:
        return nullcontext()

    def charge(self, tenant: Tenant, cpu_s: float) -> None:
        pass

    def count_request(self, tenant: Tenant) -> None:
        pass

    def requests_left(self, tenant: Tenant) -> RequestsLeft | None:
        return self.left

    def show_quotas(self, tenant: Tenant, stored: Mapping[str, float]) -> dict[str, Any]:
        return {}

    def render_metrics(self) -> bytes:
        return b'engine_workers{state="idle"} 2.0\n'

    async def drain(self) -> None:
        self.draining = self.drained = True


class NothingSynced:
    """The synchronisations of a service without sources."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        yield


class NothingPublished:
    """The versions that tenants published: none, and so nothing to keep current."""

    async def watch(self) -> None:
        await trio.sleep_forever()


@dataclass
class FakeService:
    """A service of Python functions. `entered` and `cancelled` tell of calls of the tool and agent `slow`."""

    server: ServerConfig = field(default_factory=ServerConfig)
    failures: tuple[Failed, ...] = ()
    warnings: tuple[str, ...] = ()
    engine: FakeEngine = field(default_factory=FakeEngine)
    entered: trio.Event = field(default_factory=trio.Event)
    cancelled: trio.Event = field(default_factory=trio.Event)
    release: trio.Event = field(default_factory=trio.Event)
    seen: list[Any] = field(default_factory=list)
    extra_tools: int = 0
    files: dict[Path, Any] = field(default_factory=dict)
    required: dict[Path, Any] = field(default_factory=dict)
    active: NothingPublished = field(default_factory=NothingPublished)
    syncs: NothingSynced = field(default_factory=NothingSynced)
    teams: None = None
    store: Any = None
    changes: Changes = field(default_factory=Changes)
    trouble: str | None = None

    def serving(self) -> Any:
        return self.syncs.serving()

    def __post_init__(self) -> None:
        config = Config.model_validate({"server": self.server.model_dump()})
        self.loaded = LoadedConfig(config, None, Path("/root"))
        tools = [
            ToolInfo(
                name="search",
                description="Search",
                builtin=True,
                parameters=ANY_OBJECT,
                read_only=True,
                open_world=False,
            ),
            ToolInfo(name="sources", description="Sources", builtin=True, parameters=ANY_OBJECT, read_only=True),
            ToolInfo(name="echo", description="Echo", builtin=False, parameters=ANY_OBJECT),
            ToolInfo(name="value", description="A value", builtin=False, parameters=ANY_OBJECT),
            ToolInfo(
                name="number", description="A number", builtin=False, parameters=ANY_OBJECT, returns={"type": "number"}
            ),
            ToolInfo(name="slow", description="Slow", builtin=False, parameters=ANY_OBJECT),
            ToolInfo(name="steps", description="Progress", builtin=False, parameters=ANY_OBJECT),
            ToolInfo(name="raises", description="Fails", builtin=False, parameters=ANY_OBJECT),
            ToolInfo(name="bug", description="A bug of ours", builtin=False, parameters=ANY_OBJECT),
            *(
                ToolInfo(name=f"extra_{n:04}", description="", builtin=False, parameters=ANY_OBJECT)
                for n in range(self.extra_tools)
            ),
        ]
        self.tools = {tool.name: tool for tool in tools}
        helper = AgentArgument(name="service", description="Which", required=True)
        agents = [
            AgentInfo(name="helper", description="Helps", tools=("echo",), source="lua", arguments=(helper,)),
            AgentInfo(name="slow", description="Slow", tools=(), source="lua"),
            AgentInfo(name="broken", description="Fails", tools=(), source="toml"),
            AgentInfo(name="bug", description="A bug of ours", tools=(), source="python"),
        ]
        self.agents = {agent.name: agent for agent in agents}

    def published(self, tenant: Tenant) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def list_agents(self, tenant: Tenant) -> list[AgentInfo]:
        return list(self.agents.values())

    def agent_info(self, tenant: Tenant, name: str) -> AgentInfo | None:
        return self.agents.get(name)

    def tool_info(self, tenant: Tenant, name: str) -> ToolInfo | None:
        return self.tools.get(name)

    def documents(self, tenant: Tenant) -> Documents:
        return Documents(self.store, tenant.reader)

    async def stored(self, tenant: Tenant) -> dict[str, float]:
        return {}

    async def complete(
        self, name: str, argument: str, value: str, given: Mapping[str, str], call: Call
    ) -> tuple[str, ...] | None:
        if name not in self.agents:
            raise Problem(Code.NOT_FOUND, f"there is no agent {name!r}")
        return None

    def list_tools(self, tenant: Tenant, agent: str | None = None) -> list[ToolInfo]:
        if agent is None:
            return list(self.tools.values())
        if agent not in self.agents:
            raise Problem(Code.NOT_FOUND, f"there is no agent {agent!r}")
        return [self.tools[name] for name in self.agents[agent].tools]

    async def _slowly(self) -> None:
        self.entered.set()
        try:
            await self.release.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise

    async def resolve(self, name: str, arguments: Mapping[str, Any], call: Call) -> Resolved:
        self.seen.append((name, dict(arguments)))
        await trio.lowlevel.checkpoint()
        match name:
            case "helper":
                if "service" not in arguments:
                    raise Problem(Code.BAD_REQUEST, "the argument 'service' is required")
                messages = (
                    PromptMessage(role="assistant", content="Ready."),
                    PromptMessage(role="system", content="Mind the gap."),
                )
                system = f"You help with {arguments['service']}."
                return Resolved(AgentPrompt(system=system, tools=("echo",), messages=messages))
            case "slow":
                await self._slowly()
                return Resolved(AgentPrompt(system="slow", tools=()))
            case "broken":
                raise Problem(
                    Code.AGENT_ERROR, "agent.lua:3: no", run_id="r1", traceback="agent.lua:3: in function 'resolve'"
                )
            case "bug":
                raise RuntimeError("secret detail in /etc/passwd")
        raise Problem(Code.NOT_FOUND, f"there is no agent {name!r}")

    def source(self, tenant: Tenant, name: str) -> Mapping[str, Any]:
        if name not in self.agents:
            raise Problem(Code.NOT_FOUND, f"there is no agent {name!r}")
        return {"source": "", "sha256": "", "imports": [], "unavailable": [], "left_out": {}}

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        self.seen.append((name, dict(params)))
        await trio.lowlevel.checkpoint()
        if agent is not None and name not in [tool.name for tool in self.list_tools(call.tenant, agent)]:
            raise Problem(Code.TOOL_NOT_ALLOWED, f"agent {agent!r} may not use the tool {name!r}")
        match name:
            case "search":
                return Called({"results": []})
            case "sources":
                return Called({"sources": []})
            case "echo":
                return Called(dict(params))
            case "value":
                return Called(params.get("value", NULLS))
            case "number":
                return Called(42)
            case "slow":
                await self._slowly()
                return Called("done")
            case "steps":
                if call.hearers.progress is not None:
                    for fraction, message in ((0.25, "a"), (0.25, "again"), (0.5, "b"), (0.1, "back"), (1.0, "c")):
                        call.hearers.progress(fraction, message)
                return Called("stepped")
            case "raises":
                code = Code(params.get("code", "tool_error"))
                limit = LimitUse("memory_bytes", 64, 71, "bytes", "script") if code is Code.MEMORY_LIMIT else None
                retry = 1.2 if code is Code.QUEUE_FULL else None
                raise Problem(code, "it failed", run_id="r2", limit=limit, retry_after_s=retry)
            case "bug":
                raise RuntimeError("secret detail in /etc/passwd")
        raise Problem(Code.NOT_FOUND, f"there is no tool {name!r}")


@dataclass
class Running:
    """A server that is up: where, and the means to stop it."""

    service: FakeService
    guard: Guard
    mcp: Mcp
    port: int
    stop: trio.Event
    ended: trio.Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, timeout=20, **options)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def raw(self, data: bytes) -> bytes:
        """Send bytes on a fresh connection and read until the server closes it or answers and goes quiet."""
        async with await self.connect() as stream:
            await stream.send_all(data)
            return await read_answer(stream)


@asynccontextmanager
async def serving(
    service: FakeService | None = None, max_connections: int | None = None, mcp: Mcp | None = None
) -> AsyncIterator[Running]:
    """A real server on a free port of loopback, gone when the block ends."""
    service = service or FakeService()
    stop, ended = trio.Event(), trio.Event()
    settings = service.loaded.config.server
    if max_connections is not None:
        settings = settings.model_copy(update={"max_connections": max_connections})
    mcp = mcp or Mcp(service, max_body_bytes=settings.max_body_bytes)
    async with (
        await listen("127.0.0.1", 0) as listener,
        open_app(service, settings, "127.0.0.1", mcp) as guard,  # type: ignore[arg-type]
        trio.open_nursery() as nursery,
    ):

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await serve_app(
                guard,
                listener,
                stop,
                graceful_timeout_s=settings.graceful_timeout_s,
                settings=settings,
                task_status=task_status,
            )
            ended.set()

        await nursery.start(serve)
        yield Running(service, guard, mcp, listener.socket.getsockname()[1], stop, ended)
        nursery.cancel_scope.cancel()


async def read_answer(stream: trio.SocketStream) -> bytes:
    """One complete answer that has a `content-length`, or whatever came before the connection ended."""
    data = b""
    with trio.fail_after(20):
        while True:
            head, separator, body = data.partition(b"\r\n\r\n")
            if separator:
                lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
                if lengths and len(body) >= int(lengths[0]):
                    return data
            try:
                part = await stream.receive_some(65536)
            except trio.BrokenResourceError:
                return data
            if not part:
                return data
            data += part


def parse(answer: bytes) -> httpx2.Response:
    """The bytes of an answer as a response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines]
    return httpx2.Response(int(status.split()[1]), headers=headers, content=body)


def assert_envelope(response: httpx2.Response | bytes, status: int, code: str) -> dict[str, Any]:
    """Hold that an answer is the error envelope with this status and code and leaks nothing; returns `error`."""
    if isinstance(response, bytes):
        response = parse(response)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) <= {"code", "message", "run_id", "limit", "retry_after_s", "traceback"}
    assert error["code"] == code
    assert isinstance(error["message"], str)
    assert error["message"]
    for leak in ("/usr", "/etc", "/work", "site-packages", "Traceback", "0x", "<class", "Error("):
        assert leak not in response.text
    return dict(error)


def request(method: str, path: str, body: bytes = b"", *headers: str, host: str = "localhost") -> bytes:
    """The bytes of an HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
