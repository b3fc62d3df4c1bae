"""`env.get`: what was granted by name, as it is in the environment; nothing else, and not a word about it."""

import os
from typing import Any

import pytest
from engine_support import run, small_config
from host_call_support import Caller

from engine.bridge import env
from engine.engine import open_engine
from engine.run import Authority
from sandbox.wire.outcome import Outcome

ENVIRON = {
    "GREETING": "hello",
    "EMPTY": "",
    "WORDS": "päß 🔑\nline",
    "BYTES": os.fsdecode(b"a\xff\xfeb"),
    "SECRET_KEY": "do not show",
}


def caller(*names: str) -> Caller:
    return Caller.of(env.functions(ENVIRON), Authority(env=frozenset(names)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GREETING", "hello"),
        ("EMPTY", ""),
        ("WORDS", "päß 🔑\nline"),
        ("BYTES", b"a\xff\xfeb"),
        ("UNSET", None),
    ],
)
async def test_a_granted_name_is_answered_with_its_very_bytes(name: str, value: object) -> None:
    granted = caller(name)
    assert await granted.value("env.get", name=name) == value
    assert granted.lines == []


@pytest.mark.parametrize("name", ["SECRET_KEY", "UNSET", "greeting", "GREETING ", "GREETING=", "GREETING\0", ""])
async def test_another_name_is_nil_and_one_line_says_which_key_grants_it(name: str) -> None:
    granted = caller("GREETING")
    assert await granted.value("env.get", name=name) is None
    ((level, text),) = granted.lines
    assert level == "warn"
    assert text.startswith("env.get: ")
    assert "is not granted" in text
    assert "in the entry of 'test'" in text


async def test_the_line_can_be_copied_into_the_entry_of_the_script() -> None:
    granted = caller()
    await granted.value("env.get", name="JIRA_URL")
    key = "env = [\"JIRA_URL\"] in the entry of 'test'"
    assert granted.lines == [("warn", f'env.get: "JIRA_URL" is not granted, so it is nil; {key} grants it')]


async def test_whether_a_name_is_set_shows_only_to_whom_it_is_granted() -> None:
    lines = []
    for name in ("SECRET_KEY", "UNSET"):
        granted = caller("GREETING")
        assert await granted.value("env.get", name=name) is None
        lines.append([text.replace(name, "NAME") for _, text in granted.lines])
    assert lines[0] == lines[1]


async def test_a_name_without_end_is_logged_in_part_and_on_one_line() -> None:
    granted = caller()
    await granted.value("env.get", name="x\n" * 10_000)
    ((_, text),) = granted.lines
    assert len(text) < 400
    assert "\n" not in text


@pytest.mark.parametrize("arguments", [{}, {"name": 5}, {"name": None}, {"name": ["GREETING"]}, {"name": b"\xff"}])
async def test_a_name_that_is_no_text_is_refused(arguments: dict[str, Any]) -> None:
    granted = caller("GREETING")
    told = await granted.refusal("env.get", **arguments)
    assert told.startswith(("env.get: name: expected string, got ", "env.get: name is nil: it is required"))
    assert await granted.value("env.get", name="GREETING") == "hello"


async def test_a_value_is_looked_up_when_it_is_asked_for() -> None:
    environ: dict[str, str] = {}
    granted = Caller.of(env.functions(environ), Authority(env=frozenset({"LATE"})))
    assert await granted.value("env.get", name="LATE") is None
    environ["LATE"] = "now"
    assert await granted.value("env.get", name="LATE") == "now"


async def test_a_script_sees_what_it_was_granted() -> None:
    script = """
        local bytes = env.get('BYTES')
        return {env.get('GREETING'), bytes == 'a\\xff\\xfeb', env.get('SECRET_KEY') == nil, env.get('UNSET') == nil}
    """
    async with open_engine(small_config(), env.functions(ENVIRON)) as engine:
        authority = Authority(env=frozenset({"GREETING", "BYTES", "UNSET"}))
        result = await run(engine, script, grants=env.GRANTS, authority=authority)
        assert (result.outcome, result.value) == (Outcome.OK, ["hello", True, True, True]), result.failure
        assert [(line.level, "SECRET_KEY" in line.text) for line in result.logs] == [("warn", True)]

        refused = await run(engine, "return env.get('GREETING')", grants=frozenset(), authority=authority)
        assert refused.outcome is Outcome.SCRIPT_ERROR
        again = await run(engine, "return env.get('GREETING')", grants=env.GRANTS, authority=authority)
        assert again.value == "hello"


async def test_what_host_calls_log_has_the_room_of_the_scripts_own_log() -> None:
    async with open_engine(small_config(), env.functions(ENVIRON)) as engine:
        script = "for i = 1, 190 do env.get(('N'):rep(60) .. i) end"
        result = await run(engine, script, grants=env.GRANTS, limits={"log_bytes": 1000})
        assert result.outcome is Outcome.OK, result.failure
        assert result.logs_truncated
        assert 1000 < sum(len(line.text) + 16 for line in result.logs) < 2000
