"""Python agents: found by the configuration and by entry points, resolved in this process, bounded, told apart."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
import structlog
import trio
from agents_support import CALL, Project, problem
from python_support import Authored

import agents.code.python
from agents.agent import Call, Completes
from agents.loading.loader import LoadFailure
from agents.service import Service, open_service
from engine import AgentPrompt, CallFailed, Context, PromptMessage
from engine.config import ConfigError, load_config
from engine.errors import Code, Problem
from engine.run import CallRecord, Hearers, LogLine
from engine.tenant import DEFAULT_TENANT
from engine.usage import report
from knowledge.access import EVERYTHING, Reader

Open = Callable[..., AbstractAsyncContextManager[Service]]

EXPERT = """
from engine import AgentArgument

class It:
    '''Knows databases.

    And more, which lists do not show.
    '''

    tools = ("search", "get")
    arguments = [AgentArgument(name="database", required=True), {"name": "focus", "description": "On what"}]

    async def resolve(self, args, context):
        return {"system": f"{args['database']} {context.config.get('n')} {context.tenant}", "messages": []}
"""


def resolving(body: str, fields: str = "") -> str:
    """A class whose `resolve(args, context)` has this body."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    head = f"import trio\nfrom engine import *\nclass It:\n    {fields}\n"
    return f"{head}    async def resolve(self, args, context):\n{lines}\n"


def failures(service: Service) -> dict[str, LoadFailure]:
    return {failure.name: failure for failure in service.failures}


# ---- finding ----------------------------------------------------------------------------------------------------


async def test_an_agent_is_described_by_its_class_and_resolved_with_its_config(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(authored.agent("expert", EXPERT, 'tools = ["get", "other"]\nconfig = { n = "${N}" }'))
    async with opened(N="five") as service:
        (info,) = service.list_agents(DEFAULT_TENANT)
        assert (info.name, info.description, info.source) == ("expert", "Knows databases.", "python")
        assert info.tools == ("get",)
        assert [(a.name, a.description, a.required) for a in info.arguments] == [
            ("database", "", True),
            ("focus", "On what", False),
        ]
        resolved = await service.resolve("expert", {"database": "main"}, CALL)
        assert resolved.prompt == AgentPrompt(system="main five default", tools=("get",))
        async with problem(Code.BAD_REQUEST, "missing required argument: database"):
            await service.resolve("expert", {}, CALL)


async def test_agents_of_all_kinds_stand_side_by_side_in_the_order_of_the_file(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(
        authored.agent("snake", resolving("return {'system': 's'}"))
        + '[agents.fixed]\ndescription = "d"\nsystem_prompt = "p"\n'
        + project.script("moon", "agent = {tools = {}, resolve = function() return {system = 'm'} end}")
    )
    async with opened() as service:
        assert [(info.name, info.source) for info in service.list_agents(DEFAULT_TENANT)] == [
            ("snake", "python"),
            ("fixed", "toml"),
            ("moon", "lua"),
        ]


async def test_a_class_may_take_its_config_and_one_class_may_have_several_entries(
    project: Project, authored: Authored, opened: Open
) -> None:
    module = authored.module(
        "class It:\n"
        "    def __init__(self, config):\n"
        "        self.description = config['what']\n"
        "    async def resolve(self, args, context):\n"
        "        return {'system': self.description}\n"
        "class Outer:\n"
        "    class Inner(It):\n"
        "        def __init__(self, config=None): super().__init__(config or {'what': 'none'})\n"
        "ready = It({'what': 'made by the module'})\n"
    )
    project.configure(
        f'[agents.python.a]\npath = "{module}:It"\nconfig = {{ what = "A" }}\n'
        f'[agents.python.b]\npath = "{module}:Outer.Inner"\nconfig = {{ what = "B" }}\n'
        f'[agents.python.c]\npath = "{module}:ready"\n'
    )
    async with opened() as service:
        assert service.failures == ()
        assert [info.description for info in service.list_agents(DEFAULT_TENANT)] == ["A", "B", "made by the module"]
        assert (await service.resolve("b", {}, CALL)).prompt.system == "B"


# module source, path behind the module's name -> parts of the message
UNUSABLE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "raises": ("\n1 / 0", ":It", ("importing module 'MODULE' failed: ZeroDivisionError", "(MODULE.py:2)")),
    "exits": ("import sys\nsys.exit('bye')", ":It", ("importing module 'MODULE' failed: SystemExit: bye",)),
    "syntax": ("class It:\n  def", ":It", ("failed: SyntaxError", "(MODULE.py:2)")),
    "needs": ("import authored_needs_this", ":It", ("ModuleNotFoundError: No module named 'authored_needs_this'",)),
    "other-class": ("class This: pass", ":It", ("module 'MODULE' has no 'It'",)),
    "no-resolve": ("class It: pass", ":It", ("has no method resolve(args, context)",)),
    "sync": ("class It:\n  def resolve(self, args, context): pass", ":It", ("is not an async function",)),
    "generator": ("class It:\n  async def resolve(self, a, b): yield", ":It", ("is not an async function",)),
    "one-argument": (
        "class It:\n  async def resolve(self, args): pass",
        ":It",
        ("must be called as resolve(args, context)",),
    ),
    "constructor": ("class It:\n  def __init__(self): {}['x']", ":It", ("making 'MODULE:It' failed: KeyError: 'x'",)),
    "demanding": ("class It:\n  def __init__(self, url): pass", ":It", ("making 'MODULE:It' failed: TypeError",)),
    "property": (
        "class It:\n  @property\n  def tools(self): raise OSError('gone')\n  async def resolve(self, a, b): pass",
        ":It",
        ("reading tools of 'MODULE:It' failed: OSError: gone",),
    ),
    "tools": (resolving("pass", "tools = 'search'"), ":It", ("agent: tools must be a list, got 'search'",)),
    "tool-names": (resolving("pass", "tools = ['a', 5]"), ":It", ("agent: tools[1] must be a string, got a number",)),
    "arguments": (resolving("pass", "arguments = [{}]"), ":It", ("agent: arguments[0].name is missing",)),
    "timeout": (resolving("pass", "timeout = '5'"), ":It", ("timeout of 'MODULE:It' must be a number",)),
    "timeout-0": (resolving("pass", "timeout = 0"), ":It", ("must be more than 0 seconds",)),
    "a-module": ("", "", ("path must be 'module:Class', got 'MODULE'",)),
    "a-file": ("", ".py:It", ("there is no module 'MODULE.py'",)),
    "spelling": ("", "_not:It", ("there is no module 'MODULE_not' among installed packages or ",)),
}


async def test_every_unusable_class_is_a_load_failure_of_one_line_and_the_rest_is_served(
    project: Project, authored: Authored, opened: Open
) -> None:
    expected = {}
    entries = authored.agent("good", resolving("return {'system': 'S'}"))
    for name, (source, path, parts) in UNUSABLE.items():
        module = authored.module(source)
        entries += f'[agents.python.{name}]\npath = "{module}{path}"\n'
        expected[name] = (f"{module}{path}", [part.replace("MODULE", module) for part in parts])
    entries += '[agents.python.ours]\npath = "agents.mine:It"\n'
    entries += authored.agent("unset", resolving("pass"), 'config = { token = "${NOT_SET}" }')
    project.configure(entries)
    async with opened() as service:
        found = failures(service)
        assert set(found) == {*UNUSABLE, "ours", "unset"}
        for name, (path, parts) in expected.items():
            failure = found[name]
            assert (failure.kind, str(failure.path), failure.line) == ("agent.python", path, None)
            assert "\n" not in failure.message
            for part in parts:
                assert part in failure.message, failure
        assert "'agents' is a package of the engine itself" in found["ours"].message
        assert "agents.python.unset.config.token: environment variable NOT_SET is not set" in found["unset"].message
        async with problem(Code.NOT_FOUND, "agent 'raises' failed to load"):
            await service.resolve("raises", {}, CALL)
        assert (await service.resolve("good", {}, CALL)).prompt.system == "S"


async def test_an_import_that_takes_its_time_does_not_hold_up_the_scripts_beside_it(
    project: Project, authored: Authored, opened: Open
) -> None:
    slow = authored.agent("slow", "import time\ntime.sleep(0.3)\n" + resolving("return {'system': 's'}"))
    project.configure(slow + project.script("a", "agent = {tools = {}, resolve = function() return {system='a'} end}"))
    async with opened() as service:
        assert service.failures == ()


async def test_the_projects_folder_comes_last_where_modules_are_looked_for(
    project: Project, authored: Authored, opened: Open
) -> None:
    (project.folder / "json.py").write_text("raise RuntimeError('not the one of the library')")
    project.configure(authored.agent("a", "import json\n" + resolving("return {'system': json.dumps(1)}")))
    async with opened() as service:
        assert sys.path[-1] == str(project.folder)
        assert (await service.resolve("a", {}, CALL)).prompt.system == "1"


async def test_without_python_entries_no_folder_is_looked_into(project: Project, opened: Open) -> None:
    project.configure()
    before = list(sys.path)
    async with opened():
        assert sys.path == before


def test_a_package_that_is_installed_while_the_program_runs_is_found(
    authored: Authored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> list[str]:
        return [point.name for point in agents.code.python.installed("agent")]

    folder = authored.package("first", {"engine.agents": {"one": "a:It"}})
    monkeypatch.syspath_prepend(folder)
    assert names() == names() == ["one"]
    authored.package("second", {"engine.agents": {"two": "a:It"}}).joinpath("second-1.0.dist-info").rename(
        folder / "second-1.0.dist-info"
    )
    assert names() == ["one", "two"]
    shutil.rmtree(folder / "first-1.0.dist-info")
    assert names() == ["two"]


async def test_entry_points_are_offered_unless_the_configuration_has_the_name(
    project: Project, authored: Authored, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = authored.module(resolving("return {'system': 'installed'}"))
    good = f"{module}:It"
    points = {
        "free": good,
        "taken": good,
        "same": f"{good} [extra]",
        "bad": f"{module}:Other",
        "fixed": good,
        "a b": good,
    }
    monkeypatch.syspath_prepend(authored.package("plugin", {"engine.agents": points}))
    monkeypatch.syspath_prepend(authored.package("rival", {"engine.agents": {"free": f"{module}:Rival"}}))
    monkeypatch.syspath_prepend(project.folder)
    project.configure(
        authored.agent("taken", resolving("return {'system': 'configured'}"))
        + f'[agents.python.same]\npath = "{good}"\ntimeout = 5\n'
        + '[agents.fixed]\ndescription = ""\nsystem_prompt = "inline"\n'
    )
    async with opened() as service:
        systems = {
            info.name: (await service.resolve(info.name, {}, CALL)).prompt.system
            for info in service.list_agents(DEFAULT_TENANT)
        }
        assert systems == {"free": "installed", "taken": "configured", "same": "installed", "fixed": "inline"}
        assert service.warnings == (
            f"the agent 'fixed' of the installed package plugin ({good}) is not used: "
            "the configuration has one of that name",
            f"the agent 'taken' of the installed package plugin ({good}) is not used: "
            "the configuration has one of that name",
        )
        found = failures(service)
        assert set(found) == {"free", "bad", "a b"}
        assert f"the installed package plugin: module {module!r} has no 'Other'" in found["bad"].message
        assert "the installed package rival: another installed package offers" in found["free"].message
        assert "names are" in found["a b"].message


async def test_the_key_is_the_name_and_another_name_of_the_class_is_warned_of(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(authored.agent("key", resolving("return {'system': ''}", "name = 'other'")))
    async with opened() as service:
        assert [info.name for info in service.list_agents(DEFAULT_TENANT)] == ["key"]
        assert "'other'" in service.warnings[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("limits = { memory_bytes = 1000000 }", "limits: memory_bytes cannot be enforced on Python code"),
        ('allow_hosts = ["a.example"]', "allow_hosts: unknown key"),
        ("n = 5", "n: unknown key"),
        ("config = 5", "config: expected a table, got 5"),
        ("timeout = 5\nlimits = { timeout_s = 6 }", "timeout = 5 and limits.timeout_s = 6 disagree"),
    ],
)
def test_a_key_that_promises_more_than_can_be_kept_is_an_error(project: Project, keys: str, message: str) -> None:
    project.configure(f'[agents.python.x]\npath = "a:B"\n{keys}\n')
    with pytest.raises(ConfigError) as raised:
        load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
    assert str(raised.value).startswith("engine.toml: agents.python.x")
    assert message in str(raised.value)


# ---- answers ----------------------------------------------------------------------------------------------------


async def test_a_prompt_comes_as_a_dict_or_a_model_and_may_narrow_its_tools(
    project: Project, authored: Authored, opened: Open
) -> None:
    tools = "tools = ['search', 'get']"
    model = "return AgentPrompt(system='m', tools=('get',), messages=(PromptMessage(role='user', content=args['x']),))"
    project.configure(
        authored.agent("model", resolving(model, tools))
        + authored.agent("none", resolving("return {'system': '', 'tools': (), 'unknown': 1}", tools))
        + authored.agent("kept", resolving("return {'system': ''}", tools))
        + authored.agent("wide", resolving("return {'system': '', 'tools': ['sources']}", tools))
    )
    async with opened() as service:
        prompt = (await service.resolve("model", {"x": "hello"}, CALL)).prompt
        assert prompt == AgentPrompt(
            system="m", tools=("get",), messages=(PromptMessage(role="user", content="hello"),)
        )
        assert (await service.resolve("none", {}, CALL)).prompt.tools == ()
        assert (await service.resolve("kept", {}, CALL)).prompt.tools == ("search", "get")
        async with problem(Code.AGENT_ERROR, "agent 'wide'", "'sources', which agent.tools does not declare"):
            await service.resolve("wide", {}, CALL)


# body of resolve -> code, parts of the message
WRONG: dict[str, tuple[str, Code, tuple[str, ...]]] = {
    "nothing": ("return None", Code.AGENT_ERROR, ("the answer of agent.resolve is null, not an object",)),
    "list": ("return []", Code.AGENT_ERROR, ("is a list, not an object",)),
    "no-system": ("return {'tools': []}", Code.AGENT_ERROR, ("system is missing",)),
    "system": ("return {'system': 5}", Code.AGENT_ERROR, ("system must be a string, got a number",)),
    "role": (
        "return {'system': '', 'messages': [{'role': 'user', 'content': ''}, {'role': 'robot', 'content': ''}]}",
        Code.AGENT_ERROR,
        ("messages[1].role must be 'user', 'assistant' or 'system', got 'robot'",),
    ),
    "object": (
        "return {'system': '', 'messages': [{'x': object()}]}",
        Code.AGENT_ERROR,
        ("messages[0].x is not JSON",),
    ),
    "set": ("return {'system': {1}}", Code.AGENT_ERROR, ("system is not JSON data",)),
    "key": ("return {'system': '', 'more': {1: 2}}", Code.AGENT_ERROR, ("more has a key that is not text",)),
    "nan": ("return {'system': '', 'x': float('nan')}", Code.AGENT_ERROR, ("x is not a finite number",)),
    "surrogate": ("return {'system': '\\ud800'}", Code.AGENT_ERROR, ("system holds half of a surrogate pair",)),
    "cycle": ("a = {'system': ''}\na['a'] = a\nreturn a", Code.OUTPUT_LIMIT, ("deeper than 64 levels",)),
    "large": ("return {'system': 'x' * 2_000_000}", Code.OUTPUT_LIMIT, ("larger than 1 MiB (limits.output_bytes)",)),
}


async def test_a_wrong_answer_names_the_path_and_the_next_call_works(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(
        "".join(authored.agent(name, resolving(body)) for name, (body, *_) in WRONG.items())
        + authored.agent("good", resolving("return {'system': 'S'}"))
    )
    async with opened() as service:
        for name, (_, code, parts) in WRONG.items():
            async with problem(code, f"agent '{name}'", *parts):
                await service.resolve(name, {}, CALL)
            assert (await service.resolve("good", {}, CALL)).prompt.system == "S"


# ---- failures ---------------------------------------------------------------------------------------------------


async def test_the_text_of_call_failed_is_for_the_caller_and_of_any_other_exception_for_the_log(
    project: Project, authored: Authored, opened: Open
) -> None:
    in_nursery = "async with trio.open_nursery() as nursery:\n    raise CallFailed('closed on Sundays')"
    project.configure(
        authored.agent("told", resolving("raise CallFailed('closed on Sundays: ' + context.config['t'])"),
                       'config = { t = "${T}" }')
        + authored.agent("grouped", resolving(in_nursery))
        + authored.agent("bug", resolving("open('/secret/of/the/host')"))
        + authored.agent("leaking", resolving("raise ValueError(context.config['t'])"), 'config = { t = "${T}" }')
        + authored.agent("constructor", "class It:\n  def __init__(self, config): raise ValueError(config['t'])",
                         'config = { t = "${T}" }')
        + authored.agent("exit", resolving("raise SystemExit(3)"))
        + authored.agent("exit-in-group", resolving("async with trio.open_nursery():\n    raise SystemExit(3)"))
        + authored.agent("good", resolving("return {'system': 'S'}"))
    )  # fmt: skip
    async with opened(T="hunter2-hunter2") as service:
        assert "failed: ValueError: [redacted] (" in failures(service)["constructor"].message
        async with problem(Code.AGENT_ERROR, "agent 'told': closed on Sundays: [redacted]"):
            await service.resolve("told", {}, CALL)
        async with problem(Code.AGENT_ERROR, "agent 'grouped': closed on Sundays"):
            await service.resolve("grouped", {}, CALL)
        for name, logged in {
            "bug": "FileNotFoundError",
            "leaking": "[redacted]",
            "exit": "SystemExit",
            "exit-in-group": "SystemExit",
        }.items():
            with structlog.testing.capture_logs() as events, pytest.raises(Problem) as raised:
                await service.resolve(name, {}, CALL)
            told = raised.value
            assert told.code is Code.AGENT_ERROR
            assert told.message == f"agent '{name}': its code failed; the engine's log says why, under this run_id"
            assert told.traceback is None
            (event,) = events
            assert event["run_id"] == told.run_id
            assert logged in event["exception"]
            assert "in resolve" in event["exception"]
            assert "hunter2" not in event["exception"]
            assert (await service.resolve("good", {}, CALL)).prompt.system == "S"


async def test_what_does_not_end_is_cancelled_at_its_deadline(
    project: Project, authored: Authored, opened: Open
) -> None:
    forever = (
        "try:\n    await trio.sleep_forever()\nfinally:\n    print('cleaned up', file=open(context.config['f'], 'w'))"
    )
    stubborn = "try:\n    await trio.sleep_forever()\nexcept trio.Cancelled:\n    return {'system': 'too late'}"
    cleanup = "try:\n    await trio.sleep_forever()\nfinally:\n    raise ValueError('while cleaning up')"
    nursery = "async with trio.open_nursery() as n:\n    n.start_soon(trio.sleep_forever)\n    " + cleanup.replace(
        "\n", "\n    "
    )
    blocking = "import time\ntime.sleep(0.06)\nreturn {'system': 'too late'}"
    mark = project.folder / "mark"
    project.configure(
        "[limits.max]\ntimeout_s = 20\n"
        + authored.agent("forever", resolving(forever), f"timeout = 0.05\nconfig = {{ f = '{mark}' }}")
        + authored.agent("own", resolving("await trio.sleep_forever()", "timeout = 0.05"))
        + authored.agent("stubborn", resolving(stubborn), "timeout = 0.05")
        + authored.agent("cleanup", resolving(cleanup), "timeout = 0.05")
        + authored.agent("nursery", resolving(nursery), "timeout = 0.05")
        + authored.agent("blocking", resolving(blocking), "timeout = 0.05")
        + authored.agent("lowered", resolving("return {'system': 'S'}"), "timeout = 30")
    )
    async with opened() as service:
        assert "timeout_s = 30 is above the ceiling and was lowered to 20" in service.warnings[0]
        for name in ("forever", "own", "stubborn", "cleanup", "nursery", "blocking"):
            with pytest.raises(Problem) as raised, trio.fail_after(20):
                await service.resolve(name, {}, CALL)
            told = raised.value
            assert (told.code, told.message) == (
                Code.TIMEOUT,
                f"agent '{name}' did not end within 0.05 s (limits.timeout_s)",
            )
            assert told.limit is not None
            assert (told.limit.name, told.limit.bound, told.limit.source) == ("timeout_s", 0.05, "script")
        assert mark.read_text() == "cleaned up\n"
        assert (await service.resolve("lowered", {}, CALL)).prompt.system == "S"


async def test_a_caller_who_goes_away_cancels_the_agent_and_nothing_of_it_comes_out(
    project: Project, authored: Authored, opened: Open
) -> None:
    module = authored.module(
        "import trio\nentered, left = trio.Event(), []\n"
        "class It:\n"
        "    async def resolve(self, args, context):\n"
        "        async with trio.open_nursery() as nursery:\n"
        "            nursery.start_soon(trio.sleep_forever)\n"
        "            entered.set()\n"
        "            try:\n"
        "                await trio.sleep_forever()\n"
        "            finally:\n"
        "                left.append(True)\n"
        "                raise ValueError('while cleaning up')\n"
    )
    project.configure(
        f'[agents.python.a]\npath = "{module}:It"\n' + authored.agent("b", resolving("return {'system': ''}"))
    )
    async with opened() as service:
        with trio.fail_after(20), structlog.testing.capture_logs() as events:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.resolve, "a", {}, CALL)
                await sys.modules[module].entered.wait()
                nursery.cancel_scope.cancel()
        assert sys.modules[module].left == [True]
        assert [event["event"] for event in events] == ["python code failed while it was cancelled"]
        assert report(service.engine.book.sums_of("default"))["by_agent"][0]["outcomes"] == {"cancelled": 1}
        assert (await service.resolve("b", {}, CALL)).prompt.system == ""


# ---- the context ------------------------------------------------------------------------------------------------


async def test_the_context_asks_for_the_callers_documents(project: Project, authored: Authored, opened: Open) -> None:
    (project.folder / "docs").mkdir()
    (project.folder / "docs/alpha.md").write_text("# Alpha\n\nDeploy on Tuesdays.\n")
    body = """
import json
hits = await context.search("deploy", limit=5, source="docs")
assert await context.search("  ") == []
document = await context.get(hits[0]["id"])
sources = await context.sources()
failed = []
for asking in (context.get("no such id"), context.search("x", limit="5"), context.search("x", mode="semantic")):
    try:
        await asking
    except CallFailed as error:
        failed.append([error.code, str(error)])
return {"system": json.dumps([hits, document["body"], sources[0]["source"], failed])}
"""
    project.configure(
        '[embedding]\nprovider = "disabled"\n[connectors.filesystem.docs]\nroot = "docs"\n'
        + authored.agent("asking", resolving(body.strip()))
        + authored.agent("uncaught", resolving("return await context.get('no such id')"))
    )
    await filled(project)
    async with opened() as service:
        called: list[CallRecord] = []
        call = Call(DEFAULT_TENANT, Hearers(call=called.append))
        hits, text, source, failed = json.loads((await service.resolve("asking", {}, call)).prompt.system)
        assert [(hit["title"], hit["source_url"]) for hit in hits] == [("Alpha", None)]
        assert (text, source) == ("# Alpha\n\nDeploy on Tuesdays.\n", "filesystem:docs")
        assert [code for code, _ in failed] == ["not_found", "bad_request", "embeddings_disabled"]
        assert "no such id" in failed[0][1]
        assert "limit" in failed[1][1]
        assert [record.name for record in called] == [
            "context.search", "context.get", "context.sources", "context.get", "context.search", "context.search",
        ]  # fmt: skip
        assert [record.refused is not None for record in called] == [False] * 3 + [True] * 3
        async with problem(Code.AGENT_ERROR, "agent 'uncaught': get: document not found: no such id"):
            await service.resolve("uncaught", {}, CALL)


async def filled(project: Project) -> None:
    from cli.commands.sync import fill_if_empty

    await fill_if_empty(load_config(project.folder / "engine.toml", environ={}, cwd=project.folder))


async def test_log_lines_and_progress_reach_who_listens_without_secrets_and_bounded(
    project: Project, authored: Authored, opened: Open
) -> None:
    body = """
context.log.debug("d")
context.log.info("token " + context.config["t"])
context.log.warning("w")
context.log.error("e")
context.progress(0.5, "half " + context.config["t"])
context.progress(1)
for _ in range(1000):
    context.log.info("x" * 100)
return {"system": ""}
"""
    project.configure(
        authored.agent("a", resolving(body.strip()), 'config = { t = "${T}" }\nlimits = { log_bytes = 1000 }')
    )
    lines: list[LogLine] = []
    steps: list[Any] = []
    async with opened(T="hunter2-hunter2") as service:
        call = Call(DEFAULT_TENANT, Hearers(progress=lambda *step: steps.append(step), log=lines.append))
        with structlog.testing.capture_logs() as events:
            await service.resolve("a", {}, call)
    assert [(line.level, line.text) for line in lines[:4]] == [
        ("debug", "d"),
        ("info", "token [redacted]"),
        ("warn", "w"),
        ("error", "e"),
    ]
    assert 5 < len(lines) < 15
    assert steps == [(0.5, "half [redacted]"), (1, None)]
    (event,) = [event for event in events if event["event"] == "python log"]
    assert event["lines"] == [f"[{line.level}] {line.text}" for line in lines]
    assert event["dropped"] is True


async def test_an_agent_may_say_what_an_argument_may_become(project: Project, authored: Authored, opened: Open) -> None:
    completing = (
        resolving("return {'system': ''}", "title = 'It completes'")
        + "    async def complete(self, argument, value, given, context):\n"
        + "        if argument == 'slow': await trio.sleep_forever()\n"
        + "        return {'lane': [value + '-OSL', given.get('port', '')], 'none': None, 'wrong': [1]}[argument]\n"
    )
    project.configure(
        authored.agent("a", completing, "timeout = 0.05")
        + authored.agent("b", resolving("return {'system': ''}"))
        + authored.agent(
            "c", resolving("return {}") + "    def complete(self, argument, value, given, context): pass\n"
        )
        + authored.agent("d", completing.replace("given, context", "context"))
    )
    async with opened() as service:
        first, second = (service.registry.agent(DEFAULT_TENANT.id, name) for name in "ab")
        assert isinstance(first, Completes)
        assert isinstance(second, Completes)
        assert first.info.title == "It completes"
        assert await first.complete("lane", "HAM", {"port": "OSL"}, CALL) == ("HAM-OSL", "OSL")
        assert await first.complete("none", "", {}, CALL) is None
        assert await second.complete("lane", "HAM", {}, CALL) is None
        async with problem(Code.AGENT_ERROR, "the answer of agent.complete: [0] must be a string, got a number"):
            await first.complete("wrong", "", {}, CALL)
        async with problem(Code.TIMEOUT, "agent 'a' did not end within 0.05 s"):
            await first.complete("slow", "", {}, CALL)
        assert "complete of" in failures(service)["c"].message
        assert "must be called as complete(argument, value, given, context)" in failures(service)["d"].message


# ---- objects of a program's own ---------------------------------------------------------------------------------


class Own:
    """Made by the program."""

    name = "own"

    async def resolve(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        if args.get("fail"):
            raise CallFailed("as asked")
        return {"system": "own"}


async def test_a_programs_objects_are_served_and_win_over_the_configuration(
    project: Project, authored: Authored
) -> None:
    project.configure(authored.agent("own", resolving("return {'system': 'configured'}")))
    loaded = load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
    async with open_service(loaded, agents=[Own]) as service:
        assert (await service.resolve("own", {}, CALL)).prompt.system == "own"
        (failure,) = service.failures
        assert failure.message == "another agent named 'own' comes first in the program that runs the engine"
        async with problem(Code.AGENT_ERROR, "agent 'own': as asked"):
            await service.resolve("own", {"fail": True}, CALL)


class Nameless:
    async def resolve(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        return {"system": ""}


class Wrong(Own):
    tools = 5


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([Own(), Own()], r"agents\[1\] \(.*:Own\): another agent before it is named 'own'"),
        ([Nameless()], r"agents\[0\] \(.*:Nameless\): its `name` must be"),
        ([Wrong()], r"agents\[0\] \(.*:Wrong\): agent: tools must be a list, got a number"),
        ([Own(), 5], r"agents\[1\] \(builtins:int\): .* has no method resolve"),
    ],
)
async def test_an_object_that_cannot_be_used_keeps_the_program_from_starting_and_is_named(
    project: Project, objects: list[Any], message: str
) -> None:
    project.configure()
    loaded = load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
    with pytest.raises(ConfigError, match=message):
        async with open_service(loaded, agents=objects):
            raise AssertionError("opened")


def test_an_exception_is_told_on_one_line_with_its_last_place_and_no_folder() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        told = agents.code.python.error_text(error)
    assert told.startswith("JSONDecodeError: Expecting property name")
    assert told.endswith(")")
    assert "/" not in told
    assert agents.code.python.error_text(ValueError()) == "ValueError"


async def test_python_code_reads_what_its_caller_may_and_its_entry_is_granted(
    project: Project, authored: Authored, opened: Open
) -> None:
    (project.folder / "docs").mkdir()
    (project.folder / "docs/alpha.md").write_text("# Alpha\n\nDeploy on Tuesdays.\n")
    counting = resolving("return {'system': str([len(await context.search('deploy')), len(await context.sources())])}")
    project.configure(
        '[connectors.filesystem.docs]\nroot = "docs"\naccess = ["hr"]\n'
        + authored.agent("plain", counting)
        + authored.agent("cleared", counting, 'labels = ["hr"]\n')
        + authored.agent("elsewhere", counting, 'labels = ["hr"]\nsources = ["git"]\n')
    )
    await filled(project)
    async with opened() as service:
        seen = {
            (name, reader): (await service.resolve(name, {}, Call(replace(DEFAULT_TENANT, reader=reader)))).prompt
            for name in ("plain", "cleared", "elsewhere")
            for reader in (EVERYTHING, Reader.of(["hr"]), Reader.of(["legal"]))
        }
        found = {name for name, prompt in seen.items() if prompt.system == "[1, 1]"}
        assert found == {("cleared", EVERYTHING), ("cleared", Reader.of(["hr"]))}
        assert {prompt.system for name, prompt in seen.items() if name not in found} == {"[0, 0]"}
