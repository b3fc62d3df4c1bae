"""Scenarios: every shipped one does what it says in a real pool, and a file that is wrong says where."""

import shutil
from pathlib import Path

import pytest
import trio

from agents.agent import Call
from benchmarks.load.account import Answer
from benchmarks.load.schedule import Load, Request
from benchmarks.processes import Work
from benchmarks.publishing import publish_first
from benchmarks.scenario import (
    FOLDER,
    HOSTILE_TENANT,
    Ask,
    Scenario,
    ScenarioError,
    load,
    names,
    parse,
    weights,
    with_hostile,
)
from benchmarks.targets.pool import PoolTarget, open_pool_service, scenario_config
from benchmarks.targets.target import Unfit
from engine.config import Config, LoadedConfig, parse_config
from engine.tenant import DEFAULT_TENANT

OWN = LoadedConfig(
    parse_config("[sandbox]\nworkers = 2\nreserve = 1\n", environ={}, cwd=Path("/nonexistent"))[0], None, Path("/")
)
SMALL = '[[requests]]\nagent = "a"\n'


async def asked(scenario: Scenario) -> dict[str, Answer]:
    """The answer of a real pool to each of the scenario's requests, once."""
    found = {}
    with trio.fail_after(60):
        async with open_pool_service(scenario, OWN) as service:
            target = PoolTarget(service)
            await publish_first(Work(load=Load(), asks=scenario.asks, tenants=("default",)), target)
            for ask in scenario.asks:
                found[ask.name] = await target.send(Request(ask, ask.tenant or "default", 1))
    return found


def everything() -> Scenario:
    """All shipped scenarios as one, so that one pool is enough."""
    asks: dict[str, Ask] = {}
    config: dict[str, dict[str, dict[str, object]]] = {}
    for name in names():
        scenario = load(name)
        asks |= {f"{name}/{ask.name}": ask for ask in scenario.asks}
        for kind, sections in scenario.config.items():
            for section, entries in sections.items():
                config.setdefault(kind, {}).setdefault(section, {}).update(entries)
    return Scenario(name="all", given="all", about="", asks=tuple(asks.values()), config=config)


async def test_every_shipped_request_ends_as_its_scenario_expects() -> None:
    scenario = everything()
    answers = await asked(scenario)
    wrong = {ask.name: answers[ask.name] for ask in scenario.asks if answers[ask.name].outcome not in ask.expect}
    assert wrong == {}
    incident, calls = answers["bench-incident"], answers["bench-host-calls"]
    assert incident.host_calls_s is not None
    assert incident.run_s is not None
    assert 0 < incident.host_calls_s < incident.run_s
    assert calls.host_calls_s is not None
    assert calls.host_calls_s > 0
    assert answers["bench-noop"].host_calls_s == 0
    assert answers["bench-alloc"].memory_bytes is not None
    assert answers["bench-alloc"].memory_bytes > 16 << 20


async def test_a_users_copy_of_a_scenario_works_from_its_own_folder(tmp_path: Path) -> None:
    for file in ("cpu.toml", "cpu.lua"):
        shutil.copy(FOLDER / file, tmp_path)
    path = tmp_path / "cpu.toml"
    path.write_text(path.read_text().replace("rounds = 200000", "rounds = 10").replace("rate = 10", "rate = 7"))
    scenario = load(str(path))
    assert (scenario.name, scenario.rate) == ("cpu", 7)
    assert str(tmp_path / "cpu.lua") in scenario.server_config()
    assert (await asked(scenario))["bench-cpu"].outcome == "ok"


async def test_a_scenario_whose_script_does_not_load_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.lua").write_text("agent = {} agent.resolve = nonsense(")
    (tmp_path / "mine.toml").write_text(SMALL + '[config.agents.script.a]\npath = "broken.lua"\n')
    with pytest.raises(Unfit, match=r"a did not load: .*broken\.lua:1"):
        await asked(load(str(tmp_path / "mine.toml")))


async def test_requests_of_ones_own_configuration_are_asked_of_it(tmp_path: Path) -> None:
    (tmp_path / "mine.lua").write_text('agent = {} function agent.resolve() return { system = "mine" } end')
    text = f'[db]\npath = "{tmp_path}/s.sqlite"\n[agents.script.mine]\npath = "{tmp_path}/mine.lua"\n'
    own = LoadedConfig(parse_config(text, environ={}, cwd=tmp_path)[0], None, tmp_path)
    with trio.fail_after(60):
        async with open_pool_service(
            parse('own = true\n[[requests]]\nagent = "mine"\n', "x", tmp_path), own
        ) as service:
            answer = await PoolTarget(service).send(Request(Ask(name="m", kind="agent", what="mine"), "default", 0))
            assert answer.outcome == "ok"
        with pytest.raises(Unfit, match="there is no agent 'other'"):
            async with open_pool_service(parse('own = true\n[[requests]]\nagent = "other"\n', "x", tmp_path), own):
                raise AssertionError


def test_a_pool_takes_the_users_sandbox_and_limits_and_the_scenarios_scripts(tmp_path: Path) -> None:
    text = "[sandbox]\nworkers = 3\n[limits]\ntimeout_s = 4\n"
    text += '[agents.inline.mine]\ndescription = "d"\nsystem_prompt = "s"\n'
    own = LoadedConfig(parse_config(text, environ={}, cwd=tmp_path)[0], None, tmp_path)
    loaded = scenario_config(load("noop"), own, tmp_path)
    assert loaded.config.sandbox.workers == 3
    assert loaded.config.limits.defaults["timeout_s"] == 4
    assert [name for _, name, _ in loaded.config.agents.in_order()] == ["bench-noop"]
    assert loaded.config.db.path.is_relative_to(tmp_path)


@pytest.mark.parametrize("name", names())
def test_what_a_server_needs_is_a_configuration_that_loads(name: str) -> None:
    config, warnings = parse_config(load(name).server_config(), environ={}, cwd=Path("/nonexistent"))
    assert isinstance(config, Config)
    assert warnings == ()
    entries = [entry for _, _, entry in (*config.agents.in_order(), *config.tools.in_order())]
    assert all(entry.path.is_file() for entry in entries)  # type: ignore[union-attr]


def test_every_scenario_of_the_list_is_there() -> None:
    wanted = {
        "noop", "incident", "tool", "host-calls", "cpu", "alloc", "big-result", "mix", "noisy-neighbour", "hostile",
        "cold", "churn",
    }  # fmt: skip
    assert set(names()) == wanted


def test_written_configuration_is_what_was_read() -> None:
    text = SMALL + (
        '[config.agents.script."a.b"]\npath = "/x"\nflag = true\nnumber = 1.5\nwords = ["a\\"b", "\\u00e9\\u0001"]\n'
        "day = 2026-01-02\n[config.agents.script.\"a.b\".deep.er]\nkey = 'v'\n"
    )
    scenario = parse(text, "x", Path("/folder"))
    config, _ = parse_config(scenario.server_config(), environ={}, cwd=Path("/nonexistent"))
    ((_, name, entry),) = config.agents.in_order()
    assert name == "a.b"
    assert entry.extra == {  # type: ignore[union-attr]
        "flag": True, "number": 1.5, "words": ['a"b', "é\x01"], "day": "2026-01-02", "deep": {"er": {"key": "v"}},
    }  # fmt: skip


def test_hostile_requests_replace_their_part_and_no_more() -> None:
    scenario = with_hostile(load("mix"), 20)
    shares = weights(scenario.asks, scenario.zipf)
    hostile = sum(share for ask, share in zip(scenario.asks, shares, strict=True) if ask.tenant == HOSTILE_TENANT)
    assert hostile == pytest.approx(0.2)
    plain = load("mix")
    before = weights(plain.asks, plain.zipf)
    for share, was in zip(shares, before, strict=False):
        assert share == pytest.approx(was * 0.8)
    assert scenario.tenant_zipf == plain.tenant_zipf
    assert {"bench-noop", "bench-hostile-spin"} <= set(scenario.config["agents"]["script"])
    assert with_hostile(plain, 0) is plain
    assert all(ask.tenant == HOSTILE_TENANT for ask in with_hostile(load("noop"), 100).asks)


def test_arguments_hold_the_number_of_the_request() -> None:
    ask = Ask(name="x", kind="tool", what="x", arguments={"q": "no. {n}", "deep": [{"k": "{n}{n}"}], "i": 7})
    assert ask.varies
    assert ask.numbered(4) == {"q": "no. 4", "deep": [{"k": "44"}], "i": 7}
    assert not Ask(name="x", kind="tool", what="x", arguments={"i": 7}).varies


@pytest.mark.parametrize(("text", "reason"), [
    ("requests = 1", "requests: expected at least one"), ("", "requests: expected at least one"),
    ("[[requests]]\n", "expected exactly one of agent, tool, get, publish, front_end, got 0"),
    ('[[requests]]\nagent = "a"\ntool = "b"\n', "got 2"), ('[[requests]]\nagent = ""\n', "agent: expected a name"),
    ('[[requests]]\nget = "health"\n', "get: expected a path"), ("[[requests]]\nfront_end = false\n", "expected true"),
    (SMALL + "weight = 0\n", "weight: expected a number from"), (SMALL + "weight = true\n", "weight: expected"),
    (SMALL + "weigth = 1\n", "unknown key 'weigth'; did you mean 'weight'"), (SMALL + "expect = []\n", "expect: "),
    (SMALL + "arguments = 1\n", "arguments: expected a table"), (SMALL + "otherwise = 1\n", "otherwise: expected a"),
    (SMALL + "beside = 1\n", "at least one must not"), (SMALL + "from = 2\n", "from: expected a number from 0 to 1"),
    ("rate = 0\n" + SMALL, "rate: expected a number"), ("rate = nan\n" + SMALL, "rate: expected a number"),
    ("tenants = 5000\n" + SMALL, "tenants: expected"), ("about = 1\n" + SMALL, "about: expected a text"),
    ('model = "odd"\n' + SMALL, "model: expected"), ("own = 1\n" + SMALL, "own: expected true or false"),
    ("own = true\n" + SMALL + '[config.agents.script.a]\npath = "x"\n', r"\[config\] must not be given"),
    (SMALL + "[config.server]\nbind = 'x'\n", "config: expected tables"),
    (SMALL + "[config.agents]\na = 1\n", "config: expected tables"),
    (SMALL + "otherwise = { tool = 'x', speed = 1 }\n", "requests.0.: otherwise: unknown key 'speed'"),
    (SMALL + 'script = "noop.lua"\n', "script: expected with `publish`"),
    ('[[requests]]\npublish = "a"\n', "script: expected with `publish`"),
    ('[[requests]]\npublish = "a"\nscript = "none.lua"\n', "cannot read /folder/none.lua: No such file"),
    ("x = ", "not valid TOML"),
])  # fmt: skip
def test_a_wrong_file_says_where_and_what(text: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        parse(text, "mine", Path("/folder"))


def test_an_agent_is_published_by_one_request_of_a_scenario(tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text("")
    publish = '[[requests]]\npublish = "a"\nscript = "a.lua"\n'
    with pytest.raises(ScenarioError, match="two requests publish 'a'"):
        parse(publish + publish, "mine", tmp_path)


def test_what_is_published_differs_from_request_to_request_and_is_not_what_the_script_says(tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text("local t = {n}")
    text = '[[requests]]\npublish = "a"\nscript = "a.lua"\narguments = { round = "no. {n}" }\n'
    (ask,) = parse(text, "mine", tmp_path).asks
    assert ask.varies
    assert [ask.package(number)["version"] for number in (-1, 0, 1)] == ["0", "1", "2"]
    assert ask.package(7)["config"] == {"round": "no. 7"}
    assert ask.package(7)["files"] == {"main.lua": "local t = {n}"}


async def test_a_pool_does_not_publish_into_the_users_own_control_store(tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text("")
    scenario = parse('own = true\n[[requests]]\npublish = "a"\nscript = "a.lua"\n', "mine", tmp_path)
    with pytest.raises(Unfit, match="your own control store"):
        await asked(scenario)


async def test_what_is_called_is_what_was_published_last() -> None:
    scenario = load("churn")
    call, publish = scenario.asks
    with trio.fail_after(60):
        async with open_pool_service(scenario, OWN) as service:
            target = PoolTarget(service)
            await publish_first(Work(load=Load(), asks=scenario.asks, tenants=("default",)), target)
            for number in (3, 4):
                assert (await target.send(Request(publish, "default", number))).outcome == "ok"
                async with service.published(DEFAULT_TENANT):
                    prompt = (await service.resolve(call.what, {}, Call(DEFAULT_TENANT))).prompt
                assert prompt.system == f"This is version {number}."


def test_a_scenario_that_is_not_there_says_what_is(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"about = '\xff'")
    for name, reason in (
        ("nop", "did you mean 'noop'"), ("zzz", "known: alloc, big-result"),
        (str(tmp_path / "none.toml"), "there is no such scenario file"), (str(tmp_path / "latin.toml"), "not UTF-8"),
        ("../../etc/passwd", "unknown scenario"),
    ):  # fmt: skip
        with pytest.raises(ScenarioError, match=reason):
            load(name)
