"""What an uploaded package may hold, and what its grants mean."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from publish_support import package, tool

from agents.kinds.toml import inline_agent
from agents.publishing.manifest import (
    MAX_DEPTH,
    MAX_FILES,
    MAX_PACKAGE_BYTES,
    MAX_PART_BYTES,
    MAX_PATH_BYTES,
    check_path,
    folded,
    parse_package,
    restored,
)
from control.versions.grants import Grants, beyond, for_the_operator, joined, meaning, parse_grants
from engine.errors import Code, Problem


def refusal(body: dict[str, Any], root: Any = "agent", name: str = "helper") -> Problem:
    with pytest.raises(Problem) as raised:
        parse_package(root, name, body)
    return raised.value


def files(*paths: str) -> dict[str, Any]:
    return package(files={"main.lua": "agent = {}", **dict.fromkeys(paths, "x")})


PATHS = {
    "/etc/passwd": "absolute",
    "../secret": "'..'",
    "data/../../secret": "'..'",
    "data/..": "'..'",
    "./data": "'.'",
    "data//x": "empty part",
    "data/": "empty part",
    "": "empty part",
    "a\\b": "have other meanings on some machines",
    "C:evil": "have other meanings on some machines",
    "x\0y": "cannot be seen",
    "a\u202egpj.exe": "cannot be seen",
    "a\u200bb": "cannot be seen",
    "a\nb": "cannot be seen",
    " data": "space",
    "data /x": "space",
    "data.": "dot",
    "data./x": "dot",
    "/".join("a" * (MAX_DEPTH + 1)): "deeper",
    "a" * (MAX_PART_BYTES + 1): "longer",
    "ä" * MAX_PATH_BYTES: "longer",
}


@pytest.mark.parametrize("path", PATHS, ids=ascii)
def test_a_path_that_is_a_trick_is_refused_with_the_reason(path: str) -> None:
    problem = refusal(files(path))
    assert problem.code is Code.BAD_REQUEST
    assert PATHS[path] in problem.message


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("README.md", "readme.md"),
        ("stra\u00dfe.txt", "STRASSE.txt"),
        ("caf\u00e9.md", "cafe\u0301.md"),
        ("\ufb01le.md", "file.md"),
        ("\uff21.md", "a.md"),
        ("Data/x.md", "data/y.md"),
        ("data", "data/x"),
        ("DATA", "data/x"),
        ("main.lua/x", "other"),
    ],
)
def test_paths_that_are_one_on_some_machine_are_refused(one: str, other: str) -> None:
    problem = refusal(files(one, other))
    assert problem.code is Code.BAD_REQUEST
    assert "one name on some machines" in problem.message


def test_files_in_one_folder_and_its_neighbours_are_fine() -> None:
    parsed = parse_package("agent", "helper", files("data/a.md", "data/b.md", "data/deep/a.md", "date.md", "übung.md"))
    assert set(parsed.files) - {parsed.main} == {"data/a.md", "data/b.md", "data/deep/a.md", "date.md", "übung.md"}


@given(st.text(max_size=40))
def test_a_path_that_passes_leads_below_the_package(path: str) -> None:
    try:
        check_path(path)
    except Problem:
        return
    parts = path.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert not path.startswith("/")
    assert path.isprintable()


@given(st.text(max_size=20))
def test_folding_twice_changes_nothing(text: str) -> None:
    assert folded(folded(text)) == folded(text)


MANIFESTS: dict[str, tuple[dict[str, Any], Code, str]] = {
    "no version": ({"version": None}, Code.BAD_REQUEST, "version must be a text"),
    "a number as version": ({"version": 1}, Code.BAD_REQUEST, "version must be a text"),
    "a path as version": ({"version": "../1"}, Code.BAD_REQUEST, "version is"),
    "dots as version": ({"version": ".."}, Code.BAD_REQUEST, "version is"),
    "another name": ({"name": "other"}, Code.BAD_REQUEST, "was sent for 'helper'"),
    "an unknown key": ({"grant": {}}, Code.BAD_REQUEST, "did you mean 'grants'?"),
    "an unknown kind": ({"kind": "python"}, Code.BAD_REQUEST, "one of: chatmd, lua, toml"),
    "no main": ({"main": None}, Code.BAD_REQUEST, "main must be"),
    "another main": ({"main": "x.lua"}, Code.BAD_REQUEST, "not one of files"),
    "no files": ({"files": {}}, Code.BAD_REQUEST, "files must be an object"),
    "a list of files": ({"files": ["main.lua"]}, Code.BAD_REQUEST, "files must be an object"),
    "a file that is no text": ({"files": {"main.lua": 1}}, Code.BAD_REQUEST, "must be a text"),
    "bytecode": ({"files": {"main.lua": "\x1bLuaT"}}, Code.BAD_REQUEST, "bytecode"),
    "bytecode after a mark": ({"files": {"main.lua": "\ufeff\x1bLuaT"}}, Code.BAD_REQUEST, "bytecode"),
    "too many files": (
        {"files": {f"{n}.md": "" for n in range(MAX_FILES + 1)}}, Code.TOO_LARGE, f"the most is {MAX_FILES}",
    ),
    "too large": ({"files": {"main.lua": "x" * (MAX_PACKAGE_BYTES + 1)}}, Code.TOO_LARGE, "larger than"),
    "tools that are no list": ({"tools": "search"}, Code.BAD_REQUEST, "tools must be a list"),
    "a tool that is no name": ({"tools": ["a b"]}, Code.BAD_REQUEST, "cannot name a tool"),
    "arguments of no shape": ({"arguments": [{"description": "x"}]}, Code.BAD_REQUEST, "arguments[0].name"),
    "two arguments": ({"arguments": [{"name": "a"}, {"name": "a"}]}, Code.BAD_REQUEST, "two have one name"),
    "config of no shape": ({"config": []}, Code.BAD_REQUEST, "config must be an object"),
    "config of many bytes": ({"config": {"a": "x" * 65_530}}, Code.BAD_REQUEST, "config takes 65539 bytes"),
    "config of many values": ({"config": {"a": [[]] * 1_023}}, Code.BAD_REQUEST, "config has 1025 values"),
    "grants of no shape": ({"grants": []}, Code.BAD_REQUEST, "grants must be an object"),
    "unknown grants": ({"grants": {"host": []}}, Code.BAD_REQUEST, "did you mean 'hosts'?"),
    "a host that is none": ({"grants": {"hosts": ["https://x"]}}, Code.BAD_REQUEST, "grants.hosts: expected a host"),
    "a limit that is none": ({"grants": {"limits": {"memory": 1}}}, Code.BAD_REQUEST, "grants.limits has no 'memory'"),
    "a limit of half a byte": ({"grants": {"limits": {"memory_bytes": 0.5}}}, Code.BAD_REQUEST, "a whole number"),
    "an endless limit": ({"grants": {"limits": {"timeout_s": float("inf")}}}, Code.BAD_REQUEST, "a number above 0"),
    "a secret that is no name": ({"grants": {"secrets": ["a-b"]}}, Code.BAD_REQUEST, "cannot name a secret"),
    "env that is no name": ({"grants": {"env": ["A=B"]}}, Code.BAD_REQUEST, "environment variable"),
    "a flood of grants": (
        {"grants": {"tools": [f"t{n}" for n in range(65)]}}, Code.BAD_REQUEST, "the most is 64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_is_wrong_is_refused_with_the_reason(case: str) -> None:
    keys, code, text = MANIFESTS[case]
    problem = refusal(package(**keys))
    assert problem.code is code
    assert text in problem.message


@pytest.mark.parametrize("name", ["", "a b", "../x", "..", "\uff28elper", "x" * 65, "a/b"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    assert refusal(package(), name=name).code is Code.BAD_REQUEST


def test_a_tool_named_like_a_builtin_one_is_a_conflict_in_any_letter_case() -> None:
    for name in ("search", "Search", "SOURCES"):
        assert refusal(tool(), "tool", name).code is Code.CONFLICT


def test_a_tool_is_a_script() -> None:
    assert "one of: lua" in refusal({**tool(), "kind": "toml"}, "tool", "adder").message


def test_the_digest_is_of_the_content_and_of_nothing_else() -> None:
    first = parse_package("agent", "helper", package(version="1"))
    assert parse_package("agent", "other", package(version="2")).digest == first.digest
    assert parse_package("agent", "helper", package(grants={"hosts": []})).digest == first.digest
    changes: tuple[dict[str, Any], ...] = (
        {"tools": []},
        {"arguments": []},
        {"config": {"a": 1}},
        {"grants": {"hosts": ["a.example"]}},
        {"files": {**package()["files"], "x": ""}},
    )
    for change in changes:
        assert parse_package("agent", "helper", package(**change)).digest != first.digest


def test_what_was_kept_of_a_package_is_the_package() -> None:
    body = package(
        tools=["search"], config={"n": [1, 2.5, None]},
        arguments=[{"name": "who", "required": True, "enum": ["a", "b"]}],
        grants={"hosts": ["B.example", "[::1]:80"], "limits": {"timeout_s": 60}, "tools": ["t"]},
    )  # fmt: skip
    first = parse_package("agent", "helper", body)
    again = restored("helper", "1", first.digest, first.content)
    assert again == first
    assert again.digest == first.digest
    assert json.loads(first.content)["grants"]["hosts"] == ["[::1]:80", "b.example"]


def test_an_inline_agent_is_toml_with_or_without_its_table() -> None:
    keys = 'description = "D"\nsystem_prompt = "${HOME}"\ntools = ["search"]\n'
    for text in (keys, f"[agents.helper]\n{keys}"):
        entry = inline_agent(parse_package("agent", "helper", package(kind="toml", files={"main.lua": text})))
        assert (entry.description, entry.system_prompt, entry.tools) == ("D", "${HOME}", ("search",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("description = ", "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
        ("a = " + "9" * 5000, "a number has too many digits"),
        ('a = "' + "\\n" * 5000 + '"', "5000 backslashes"),
        ('\\"' * 4000, "not valid TOML"),
        ('description = "D"', "system_prompt"),
        ('description = "D"\nsystem_prompt = 1', "system_prompt"),
        ('description = "D"\nsystem_prompt = "S"\ntenants = ["*"]', "unknown key 'tenants'"),
    ],
)
def test_an_inline_agent_that_is_none_is_refused_with_the_reason(text: str, said: str) -> None:
    parsed = parse_package("agent", "helper", package(kind="toml", files={"main.lua": text}))
    with pytest.raises(Problem) as raised:
        inline_agent(parsed)
    assert raised.value.code is Code.BAD_REQUEST
    assert said in raised.value.message


# ---- grants -------------------------------------------------------------------------------------------------------


def test_hosts_are_compared_in_one_spelling() -> None:
    asked = parse_grants({"hosts": ["API.Example.com", "api.example.com", "*.Example.org:8443", "[0:0::1]:80"]})
    assert asked.hosts == ("*.example.org:8443", "[::1]:80", "api.example.com")
    assert not beyond(asked, parse_grants({"hosts": ["api.example.COM", "*.example.org:8443", "[::1]:80"]}))


def test_only_what_is_more_than_approved_is_new() -> None:
    approved = Grants(hosts=("a.example",), limits={"timeout_s": 60.0})
    asked = Grants(hosts=("a.example", "b.example"), tools=("t",), limits={"timeout_s": 50.0, "cpu_s": 20.0})
    new = beyond(asked, approved)
    assert new == Grants(hosts=("b.example",), tools=("t",), limits={"cpu_s": 20.0})
    assert new.non_empty() == {"hosts": ["b.example"], "tools": ["t"], "limits": {"cpu_s": 20.0}}
    assert str(new) == "hosts b.example; tools t; limits cpu_s = 20"


NAMES = st.lists(st.sampled_from("abcdef"), max_size=4).map(tuple)
GRANTS = st.builds(
    Grants,
    hosts=NAMES,
    secrets=NAMES,
    env=NAMES,
    tools=NAMES,
    limits=st.dictionaries(st.sampled_from(["cpu_s", "timeout_s"]), st.floats(0.1, 100)),
)


@given(GRANTS, GRANTS)
def test_whatever_was_approved_asks_for_nothing(asked: Grants, other: Grants) -> None:
    assert not beyond(asked, joined([other, asked]))
    assert not beyond(beyond(asked, other), asked)


def test_private_addresses_any_host_and_the_environment_are_the_operators_to_grant() -> None:
    asked = parse_grants(
        {
            "hosts": ["api.example.com", "*.example.com", "8.8.8.8", "10.0.0.5:80", "[::1]:80", "169.254.169.254",
                      "*:443"],
            "env": ["HOME"], "secrets": ["TOKEN"], "tools": ["t"], "limits": {"timeout_s": 300},
        }
    )  # fmt: skip
    assert for_the_operator(asked) == Grants(
        hosts=("*:443", "10.0.0.5:80", "169.254.169.254", "[::1]:80"), env=("HOME",)
    )


def test_labels_are_asked_for_and_all_sources_go_with_the_first_approval_of_hosts() -> None:
    plain, labelled = parse_grants({}), parse_grants({"labels": ["hr", "hr"], "sources": ["git:docs"]})
    assert (labelled.labels, labelled.sources) == (("hr",), ("git:docs",))
    assert str(labelled) == "labels hr; sources git:docs"
    assert labelled.as_json() == {**plain.as_json(), "labels": ["hr"], "sources": ["git:docs"]}
    assert beyond(labelled, plain) == Grants(labels=("hr",))
    assert not beyond(plain, labelled)  # it reads more sources, but reaches no host
    assert parse_grants({"sources": ["*", "docs"]}) == plain
    assert parse_grants({"sources": []}).sources == ()


def test_more_sources_for_a_version_with_hosts_need_an_approval() -> None:
    hosts = {"hosts": ["a.example"]}
    everything, docs = parse_grants(hosts), parse_grants({**hosts, "sources": ["docs"]})
    assert beyond(everything, Grants()) == Grants(hosts=("a.example",))
    assert not beyond(docs, everything)
    assert beyond(everything, docs) == Grants(sources=("*",))
    assert str(beyond(everything, docs)) == "sources *"
    assert beyond(parse_grants({**hosts, "sources": ["docs", "hr"]}), docs) == Grants(sources=("hr",))
    # What was approved without hosts is no approval of sending it anywhere.
    assert beyond(everything, joined((parse_grants({}), docs))) == Grants(sources=("*",))
    assert not beyond(everything, joined((docs, everything)))


def test_hosts_with_all_sources_are_said_to_mean_what_they_mean() -> None:
    assert meaning(parse_grants({})) is None
    assert meaning(parse_grants({"hosts": ["a.example"], "sources": ["docs"]})) is None
    said = meaning(parse_grants({"hosts": ["a.example"], "labels": ["hr", "legal"]}))
    assert said == (
        "It may read every document without labels or with the labels hr, legal, from all sources, that its caller may "
        "read, and send what it has read to a.example. grants.sources narrows that."
    )


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"labels": ["a b"]}, "grants.labels: 'a b' is no label"),
        ({"labels": "hr"}, "grants.labels must be a list"),
        ({"labels": [f"l{n}" for n in range(33)]}, "grants.labels lists 33 things; the most is 32"),
        ({"sources": ["a:b:c"]}, "grants.sources: 'a:b:c' cannot name a source"),
        ({"sources": [""]}, "grants.sources: '' cannot name a source"),
        ({"sources": 5}, "grants.sources must be a list"),
        ({"sources": [f"s{n}" for n in range(65)]}, "grants.sources lists 65"),
    ],
)
def test_labels_and_sources_that_make_no_sense_are_refused(given: object, part: str) -> None:
    with pytest.raises(Problem, match=re.escape(part)):
        parse_grants(given)
