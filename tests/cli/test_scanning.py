"""Documents from Lua scripts: what a script may return, and what becomes of it."""

import json
import re
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from cli_support import Engine
from hypothesis import given
from hypothesis import strategies as st

from agents import scanning
from agents.scanning import (
    MAX_CHECKPOINT,
    MAX_CHECKPOINT_VALUES,
    MAX_ID,
    MAX_ITEMS,
    MAX_METADATA,
    ScriptScan,
    ScriptSource,
)
from engine.bridge import CallRefused
from engine.config.entries import ScriptConnector
from engine.tenant import DEFAULT_TENANT
from knowledge.connectors import Complete, ConnectorError, Emitted, Event, Gone, Partial, Reached, Skipped

ISSUES = [
    {
        "number": number,
        "title": f"Issue {number}",
        "body": "The breaker opens." if number % 2 else None,
        "labels": [{"name": "bug"}],
        "user": {"login": "ann"},
        "html_url": f"https://example.com/issues/{number}",
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": f"2026-01-0{number}T00:00:00Z",
    }
    for number in range(1, 6)
]

# In the form of context-harness's own examples: pages of an API, an array of items, `metadata_json`.
PAGES = """
connector = { name = "issues", version = "0.1.0", description = "Issues" }

function connector.scan(config)
    local items = {}
    for page = 1, tonumber(config.max_pages) or 3 do
        local resp = http.get(config.base .. "/issues", {
            headers = { ["Accept"] = "application/json" }, params = { page = tostring(page) } })
        if not resp.ok then log.error("HTTP " .. resp.status) break end
        if resp.json == nil or #resp.json == 0 then break end
        for _, issue in ipairs(resp.json) do
            local parts = { "# " .. (issue.title or "Untitled") }
            if issue.body and issue.body ~= "" then table.insert(parts, issue.body) end
            table.insert(items, {
                source_id = tostring(issue.number), title = issue.title, body = table.concat(parts, "\\n"),
                author = issue.user and issue.user.login or nil, source_url = issue.html_url,
                content_type = "text/markdown", created_at = issue.created_at, updated_at = issue.updated_at,
                metadata_json = json.encode({ number = issue.number }),
            })
        end
    end
    return items
end
"""


class _Api(BaseHTTPRequestHandler):
    issues: list[dict[str, Any]] = ISSUES

    @classmethod
    def page(cls, path: str) -> list[dict[str, Any]]:
        n = int(path.rpartition("page=")[2])
        return cls.issues[(n - 1) * 2 : n * 2]

    def do_GET(self) -> None:
        body = json.dumps(self.page(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    """The address of an API with pages of two issues."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def configure(folder: Path, script: str, **keys: Any) -> None:
    (folder / "scan.lua").write_text(script)
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    (folder / "engine.toml").write_text("\n".join(['[connectors.script.x]\npath = "scan.lua"', *lines, ""]))


def test_the_newest_page_of_an_api_is_synchronised_and_older_items_stay(
    engine: Engine, tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, PAGES, base=f"http://{api}", allow_hosts=[api], max_pages="2")
    first = engine("sync", "script:x", "--json").json["sources"][0]
    assert (first["upserted"], first["deleted"], first["skipped"], first["error"]) == (4, 0, [], None)
    again = engine("sync", "script", "--json").json["sources"][0]
    assert (again["upserted"], again["unchanged"]) == (0, 4)
    monkeypatch.setattr(_Api, "issues", [{**ISSUES[4], "title": "New"}, *ISSUES[:1]])
    newer = engine("sync", "all", "--json").json["sources"][0]
    assert (newer["upserted"], newer["unchanged"], newer["deleted"]) == (1, 1, 0)
    assert engine("stats", "--json").json["documents"] == 5
    (found,) = engine("search", "New", "--json").json["results"]
    shown = engine("get", found["id"], "--json").json
    assert (shown["source_id"], shown["author"], shown["metadata"]) == ("5", "ann", {"number": 5})
    assert (shown["updated_at"], shown["content_type"]) == ("2026-01-05T00:00:00Z", "text/markdown")


def test_a_dry_run_of_a_script_writes_nothing(engine: Engine, tmp_path: Path, api: str) -> None:
    configure(tmp_path, PAGES, base=f"http://{api}", allow_hosts=[api])
    before = sorted(path.name for path in tmp_path.iterdir())
    assert engine("sync", "script:x", "--dry-run", "--json").json["sources"][0]["upserted"] == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("script", "keys", "message"),
    [
        ("connector = {}", {}, "connector.scan is not a function but a nil value"),
        ("x = 1", {}, "the script neither sets the global 'connector' to a table nor returns one"),
        ("connector = { scan = function() error('no luck') end }", {}, "no luck"),
        ("connector = { scan = function() return 'text' end }", {}, "must return a list of items, got a string"),
        ("connector = { scan = function() return { a = 1 } end }", {}, "must return a list of items, got a table"),
        ("connector = { scan = function() local t = {} t[1] = t return t end }", {}, "connector 'x'"),
        ("connector = { scan = function() while true do end end }", {"limits": {"cpu_s": 0.2}}, "CPU"),
        ("connector = { scan = function() return { ('x'):rep(2^24) } end }", {"limits": {"output_bytes": 1000}}, "1"),
        ("connector = { scan = function() http.get('http://127.0.0.1:1/') end }", {}, "allow_hosts"),
        ("connector = { scan = function(config, context) context.search('x') end }", {}, "search"),
        ("connector = { scan = function(config, context) return context.emit end }", {}, "is a function"),
        ("connector = { scan = function(config, context) context:emit{} end }", {}, "with a dot"),
        ("connector = { scan = function(config, context) context.emit('x') end }", {}, "a table with named fields"),
        ("connector = { scan = function(_, c) local t = { source_id = 'a' } t.body = t c.emit(t) end }", {}, "cycle"),
        ("connector = { scan = function(_, c) c.deleted({}) end }", {}, "source_id must be a string"),
        ("connector = { scan = function(_, c) c.emit({ source_id = 'a' }, ('x'):rep(65536)) end }", {}, "65,536"),
        ("connector = { scan = function(_, c) while true do c.emit{} end end }", {}, "host_calls"),
        ("connector = { scan = function() return io.open('/etc/passwd') end }", {}, "io"),
    ],
)  # fmt: skip
def test_a_script_that_fails_leaves_what_was_stored(
    engine: Engine, tmp_path: Path, script: str, keys: dict[str, Any], message: str
) -> None:
    configure(tmp_path, "connector = { scan = function() return { { source_id = 'a', body = 'kept' } } end }")
    assert engine("sync", "script:x", "--json").json["sources"][0]["upserted"] == 1
    (tmp_path / "scan.lua").write_text(script)
    if keys:
        table = "".join(f"{key} = {value}\n" for key, value in keys["limits"].items())
        with (tmp_path / "engine.toml").open("a") as file:
            file.write(f"[connectors.script.x.limits]\n{table}")
    ended = engine("sync", "script:x", "--json")
    assert ended.code == 1
    assert message in ended.json["sources"][0]["error"]
    assert str(tmp_path) not in ended.json["sources"][0]["error"]
    assert engine("stats", "--json").json["documents"] == 1


def test_a_script_has_the_grants_and_keys_of_its_entry(engine: Engine, tmp_path: Path) -> None:
    script = """
    connector = {}
    function connector.scan(config, context)
        return { { source_id = "a", body = config.word .. " " .. context.config.word .. " " .. fs.read("note.txt") } }
    end
    """
    (tmp_path / "note.txt").write_text("beside")
    configure(tmp_path, script, word="alpha")
    assert engine("sync", "script:x", "--json").json["sources"][0]["upserted"] == 1
    (found,) = engine("search", "beside", "--json").json["results"]
    assert engine("get", found["id"], "--json").json["body"] == "alpha alpha beside"


def scan_of(nursery: Any = None, max_bytes: int = 1000, **keys: Any) -> ScriptScan:
    """A scan without its script."""
    entry = ScriptConnector(path=Path("scan.lua"), max_extract_bytes=max_bytes, extra=keys)
    return ScriptScan(ScriptSource("x", entry, None, DEFAULT_TENANT), nursery)  # type: ignore[arg-type]


async def events(answer: object) -> list[Event]:
    return [event async for event in scan_of().returned(answer)]


async def listed(answer: object) -> tuple[list[str], dict[str, str]]:
    found = await events(answer)
    skipped = {event.source_id: event.reason for event in found if isinstance(event, Skipped)}
    return [event.found.source_id for event in found if isinstance(event, Emitted)], skipped


async def test_an_item_that_cannot_be_stored_is_skipped_with_a_reason() -> None:
    fine = {"source_id": "a", "body": "text"}
    names, skipped = await listed([
        fine, fine, {**fine, "source_id": 7}, "text", {"body": "x"}, {**fine, "source_id": "x" * (MAX_ID + 1)},
        {**fine, "source_id": "b"*3, "body": ""}, {**fine, "source_id": "large", "body": "é" * 501},
        {**fine, "source_id": "m1", "metadata_json": "[1]"}, {**fine, "source_id": "m2", "metadata_json": "[" * 60_000},
        {**fine, "source_id": "m3", "metadata_json": " " * (MAX_METADATA + 1)}, {**fine, "source_id": "t", "title": 1},
    ])  # fmt: skip
    assert names == ["a", "7"]
    assert skipped == {
        "a": "returned twice; the first was taken",
        "item 4": "an item must be a table with named fields, got a string",
        "item 5": "source_id must be a string that is not empty, got nil",
        "item 6": f"source_id must have at most {MAX_ID} characters, none of them a control character",
        "bbb": "body must be a string that is not empty",
        "large": "too large: 1002 bytes; max_extract_bytes is 1000",
        "m1": "metadata_json must be a JSON object",
        "m2": "metadata_json must be a JSON object",
        "m3": f"metadata_json has {MAX_METADATA + 1} characters; the most is {MAX_METADATA}",
        "t": "title must be a string, got a number",
    }
    assert await listed({}) == ([], {})


async def test_more_items_than_a_scan_may_have_are_refused() -> None:
    with pytest.raises(ConnectorError, match="the most is 100,000"):
        await events([{}] * (MAX_ITEMS + 1))


async def test_how_a_scan_ended_is_its_checkpoint_and_whether_it_saw_everything() -> None:
    (reached,) = await events({"checkpoint": {"page": 2}})
    assert isinstance(reached, Reached)
    assert await events({"checkpoint": {"page": 2}, "complete": True}) == [reached, Complete()]
    assert await events({"complete": True}) == [Complete()]
    assert await events({"complete": False}) == []
    for wrong in (None, {"completed": True}, {"complete": "yes"}, {"checkpoint": "x" * MAX_CHECKPOINT}, "text"):
        with pytest.raises(ConnectorError, match=r"^connector\.scan"):
            await events(wrong)


async def test_a_checkpoint_that_is_far_too_large_is_refused_before_it_is_written() -> None:
    huge = "\x01" * 1_000_000  # six characters each as JSON
    for checkpoint in (huge, {"page": [huge]}, {huge: 1}):
        tracemalloc.start()
        try:
            with pytest.raises(ConnectorError, match="more than 65,536 bytes of JSON"):
                await events({"checkpoint": checkpoint})
            assert tracemalloc.get_traced_memory()[1] < len(huge)
        finally:
            tracemalloc.stop()


async def test_a_checkpoint_of_many_values_is_refused_unwritten_and_a_large_one_is_written_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    encode = scanning._ENCODER.iterencode

    def noting(value: object) -> Iterator[str]:
        threads.append(threading.get_ident())
        return encode(value)

    monkeypatch.setattr(scanning._ENCODER, "iterencode", noting)
    for many in ([0] * MAX_CHECKPOINT_VALUES, {str(n): 0 for n in range(MAX_CHECKPOINT_VALUES)}, [[[]] * 5_001] * 2):
        with pytest.raises(ConnectorError, match="more than 10,000 values"):
            await events({"checkpoint": many})
    assert threads == []
    charged: list[float] = []
    source = scan_of().source
    await source.kept_from(list(range(MAX_CHECKPOINT_VALUES - 1)), charged.append)
    await source.kept_from({"page": 2}, charged.append)
    assert [each == threading.get_ident() for each in threads] == [False, True]
    assert len(charged) == 2
    assert charged[0] > charged[1] > 0


def test_a_checkpoint_is_that_of_the_keys_it_was_made_with() -> None:
    kept = scan_of(repo="a").source.kept({"page": 2})
    assert scan_of(repo="a").source.loaded(kept) == {"page": 2}
    assert scan_of(repo="b").source.loaded(kept) is None
    assert scan_of(repo="a", max_bytes=7).source.loaded(kept) is None
    for damaged in (None, "", "x", kept[:-1]):
        assert scan_of(repo="a").source.loaded(damaged) is None


async def test_a_scan_that_emits_too_much_is_refused_and_cannot_say_that_it_was_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanning, "MAX_SCAN_BYTES", 1000)
    taken: list[Event] = []
    async with trio.open_nursery() as nursery:
        scan = scan_of(nursery)

        async def take() -> None:
            async for event in scan._receive:
                taken.append(event)

        nursery.start_soon(take)
        for n in range(9):
            await scan.emit({"source_id": f"i{n}", "body": "x" * 100}, None, None, lambda cpu_s: None)
        with pytest.raises(CallRefused, match="the next scan goes on there"):
            await scan.emit({"source_id": "late", "body": "x" * 100}, None, None, lambda cpu_s: None)
        with pytest.raises(ConnectorError, match="found more than a scan takes"):
            [event async for event in scan.returned({"complete": True})]
        await scan.deleted("i1")
        await scan.deleted(7)
        nursery.cancel_scope.cancel()
    assert len(taken) == 11
    assert taken[9:] == [Gone("i1"), Gone("7")]


async def test_an_item_without_an_id_stops_a_complete_scan_from_deleting() -> None:
    events = scan_of()._events({"body": "x"}, "kept", None)
    assert [type(event) for event in events] == [Skipped, Partial, Reached]


@pytest.mark.parametrize(
    ("time", "stored"),
    [
        ("2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00Z"),
        ("2026-01-31 12:00:00", "2026-01-31T12:00:00Z"),
        ("Sat, 31 Jan 2026 12:00:00 GMT", "2026-01-31T12:00:00Z"),
        (1769860800, "2026-01-31T12:00:00Z"),
        (1e300, None),
        (float("nan"), None),
        (True, None),
        ("yesterday", None),
        ("9" * 1000, None),
    ],
)
async def test_times_are_taken_in_the_forms_that_apis_have(time: object, stored: str | None) -> None:
    (emitted,) = await events([{"source_id": "a", "body": "b", "updated_at": time}])
    assert isinstance(emitted, Emitted)
    assert emitted.item.updated_at == emitted.found.updated_at == stored


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_FIELDS = ("source_id", "body", "title", "author", "source_url", "created_at", "updated_at", "metadata_json")


@given(st.lists(st.dictionaries(st.sampled_from(_FIELDS), _VALUES) | _VALUES, max_size=6))
def test_no_answer_of_a_script_is_more_than_a_skipped_item(answer: list[Any]) -> None:
    names, skipped = trio.run(listed, answer)
    assert len(names) + len(skipped) <= len(answer)


STREAM = """
connector = {}
function connector.scan(config, context)
    local from = context.checkpoint and context.checkpoint.n or 0
    log.info("from", from)
    for n = from + 1, tonumber(config.last) do
        context.emit({ source_id = n, body = "word " .. n }, { n = n })
        if n == config.fails_at then error("no luck") end
    end
    if from > 0 then context.deleted(1) end
    return { checkpoint = { n = tonumber(config.last) }, complete = config.complete }
end
"""


def test_a_script_streams_goes_on_where_it_ended_and_deletes_what_it_names(engine: Engine, tmp_path: Path) -> None:
    configure(tmp_path, STREAM, last=100)
    first = engine("sync", "all", "--json").json["sources"][0]
    assert (first["upserted"], first["deleted"], first["error"]) == (100, 0, None)
    # Its own keys have changed: whether its checkpoint still holds is not known.
    configure(tmp_path, STREAM, last=110)
    again = engine("sync", "all", "--json").json["sources"][0]
    assert (again["upserted"], again["unchanged"], again["deleted"]) == (10, 100, 0)
    last = engine("sync", "all", "--json").json["sources"][0]
    assert (last["fetched"], last["deleted"]) == (0, 1)
    full = engine("sync", "all", "--full", "--json").json["sources"][0]
    assert (full["upserted"], full["deleted"]) == (110, 0)
    assert engine("stats", "--json").json["documents"] == 110


def test_a_complete_scan_deletes_what_it_did_not_emit(engine: Engine, tmp_path: Path) -> None:
    configure(tmp_path, STREAM, last=10)
    assert engine("sync", "all", "--json").json["sources"][0]["upserted"] == 10
    configure(tmp_path, STREAM, last=4, complete=True)
    assert engine("sync", "all", "--json").json["sources"][0]["deleted"] == 6
    assert engine("stats", "--json").json["documents"] == 4


def test_a_scan_that_fails_keeps_what_it_emitted_and_the_next_one_goes_on_there(engine: Engine, tmp_path: Path) -> None:
    script = STREAM.replace("n == config.fails_at", 'n == 70 and not pcall(fs.read, "mended.txt")')
    configure(tmp_path, script, last=100)
    ended = engine("sync", "all", "--json")
    assert (ended.code, engine("stats", "--json").json["documents"]) == (1, 70)
    assert "no luck" in ended.json["sources"][0]["error"]
    assert "no luck" in engine("sources", "--json").json["sources"][0]["last_error"]
    (tmp_path / "mended.txt").touch()
    assert engine("sync", "all", "--json").json["sources"][0]["fetched"] == 30
    assert engine("stats", "--json").json["documents"] == 99


def test_an_item_that_is_too_large_is_skipped_and_the_others_are_there(engine: Engine, tmp_path: Path) -> None:
    script = """
    connector = {}
    function connector.scan(config, context)
        context.emit{ source_id = "vast", body = ("x"):rep(20000000) }
        context.emit{ source_id = "large", body = ("x"):rep(3000) }
        context.emit{ body = "nameless" }
        context.emit{ source_id = "small", body = "x" }
    end
    """
    configure(tmp_path, script, max_extract_bytes=2000)
    report = engine("sync", "all", "--json").json["sources"][0]
    assert (report["upserted"], report["error"]) == (1, None)
    assert {each["source_id"]: each["reason"] for each in report["skipped"]} == {
        "vast": "too large: 20000000 bytes; max_extract_bytes is 2000",
        "large": "too large: 3000 bytes; max_extract_bytes is 2000",
        "item 3": "source_id must be a string that is not empty, got nil",
    }


def test_a_source_is_tried_out_without_writing(engine: Engine, tmp_path: Path, api: str) -> None:
    configure(tmp_path, STREAM, last=3, fails_at=2)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# Alpha\n\nword")
    (tmp_path / "docs/b.md").write_bytes(b"\xff\x00")
    with (tmp_path / "engine.toml").open("a") as file:
        file.write('[connectors.filesystem.docs]\nroot = "docs"\n')
        file.write('[connectors.git.private]\nurl = "https://me:hidden@example.com/r.git"\n')
    listed = engine("connector", "list", "--json")
    assert {row["source"]: row["from"] for row in listed.json["connectors"]} == {
        "filesystem:docs": "docs", "git:private": "https://example.com/r.git", "script:x": "scan.lua",
    }  # fmt: skip
    assert "hidden" not in listed.out + engine("connector", "list").out
    ended = engine("connector", "test", "filesystem:docs", "--json")
    assert ended.code == 0, ended.err
    files = ended.json
    assert ([item["title"] for item in files["items"]], files["found"], files["complete"]) == (["Alpha"], 2, True)
    assert [each["source_id"] for each in files["skipped"]] == ["b.md"]
    failed = engine("connector", "test", "x")
    assert (failed.code, "no luck" in failed.err) == (1, True)
    assert "2 items, 0 skipped, 0 deleted; a failed scan; nothing was written\n" in failed.out
    (tmp_path / "other.lua").write_text(STREAM)
    granted = engine("connector", "test", "other.lua", "--source", "x", "--checkpoint", '{"n": 2}', "--json").json
    assert (granted["found"], granted["deleted"], granted["checkpoint"]) == (1, ["1"], {"n": 3})
    assert not (tmp_path / "data").exists()
    assert "did you mean 'script:x'?" in engine("connector", "test", "script:y").err


def test_no_agent_or_tool_has_what_a_connector_has(engine: Engine, tmp_path: Path) -> None:
    script = """
    tool = { description = "x", parameters = {} }
    function tool.execute(params, context) return { tostring(context.emit), tostring(context.checkpoint) } end
    """
    (tmp_path / "tool.lua").write_text(script)
    (tmp_path / "engine.toml").write_text('[tools.script.t]\npath = "tool.lua"\n')
    assert engine("tool", "test", "t", "--json").json["result"] == ["nil", "nil"]


def test_the_example_of_the_page_runs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```lua\n(connector = .*?)```", page, re.DOTALL)
    monkeypatch.setattr(_Api, "page", staticmethod(lambda path: [{"id": 1, "name": "Down", "text": "It was down."}]))
    configure(tmp_path, script, base=f"http://{api}", allow_hosts=[api])
    assert engine("sync", "script:x", "--json").json["sources"][0]["upserted"] == 1


def test_no_script_reads_the_clones_of_git_sources(engine: Engine, tmp_path: Path) -> None:
    """They hold private repositories, of all tenants."""
    script = """
    connector = {}
    function connector.scan(config)
        local ok, why = pcall(fs.read, config.file)
        return { { source_id = "a", body = tostring(ok) .. " " .. why } }
    end
    """
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/secret.txt").write_text("hidden words")
    (tmp_path / "open.txt").write_text("open words")
    for file, told in (("open.txt", "true open words"), ("kept/secret.txt", "false")):
        configure(tmp_path, script, file=file)
        with (tmp_path / "engine.toml").open("a") as text:
            text.write('[connectors.git.g]\nurl = "file:///nosuch"\ncache_dir = "kept"\n')
        assert engine("sync", "script:x", "--json").code == 0
        (found,) = engine("search", told.split()[0], "--json").json["results"]
        body = engine("get", found["id"], "--json").json["body"]
        assert body.startswith(told)
        assert "hidden" not in body
