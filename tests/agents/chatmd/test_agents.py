"""Documents as agents of a service: their prompts, what does not load, and what changes while it runs."""

import base64
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio
from agents_support import CALL, Project, agent, problem

from agents.agent import AgentPrompt, BlockMessage, ImageBlock, LinkBlock, PromptMessage, ResourceBlock, TextBlock
from agents.changes import Change
from agents.kinds.chatmd import ChatmdAgent
from agents.loading import folder as folders
from agents.reload import reload_on_change
from agents.service import Service
from engine.errors import Code
from engine.tenant import DEFAULT_TENANT

Open = Callable[..., AbstractAsyncContextManager[Service]]

HELLO = "<system>You are a very polite assistant.</system>\n<assistant>Hello!  How can I help you today?</assistant>\n"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def put(project: Project, **files: str | bytes) -> None:
    """Write files; `sub__a_md` is sub/a.md."""
    for name, content in files.items():
        path = project.folder / ".".join(name.replace("__", "/").rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def one(path: str = "a.chatmd", keys: str = "") -> str:
    return f'[agents.chatmd.a]\npath = "{path}"\n{keys}\n'


async def prompt(service: Service, name: str = "a", **given: object) -> AgentPrompt:
    return (await service.resolve(name, given, CALL)).prompt


def failures(service: Service) -> dict[str, str]:
    return {each.name: each.message for each in service.failures}


async def test_the_seeds_document_is_a_prompt_as_written(project: Project, opened: Open) -> None:
    put(project, hello_world_chatmd=HELLO)
    project.configure('[agents.chatmd.hello_world]\npath = "hello_world.chatmd"\n')
    async with opened() as service:
        (info,) = service.list_agents(DEFAULT_TENANT)
        assert (info.name, info.source, info.description) == (
            "hello_world", "chatmd", "You are a very polite assistant.",
        )  # fmt: skip
        assert [(each.name, each.required) for each in info.arguments] == [("input", False)]
        greeting = PromptMessage(role="assistant", content="Hello!  How can I help you today?")
        assert await prompt(service, "hello_world") == AgentPrompt(
            system="You are a very polite assistant.", tools=(), messages=(greeting,)
        )
        asked = await prompt(service, "hello_world", input="What is the <tool/>?")
        assert asked.messages == (greeting, PromptMessage(role="user", content="What is the <tool/>?"))
        source = service.source(DEFAULT_TENANT, "hello_world")
        assert (source["source"], source["imports"], source["unavailable"]) == (HELLO, [], [])
        assert set(source["left_out"].values()) == {0}
        async with problem(Code.BAD_REQUEST, "input must be a text"):
            await prompt(service, "hello_world", input=3)


async def test_files_addresses_and_stored_calls_have_their_places_in_a_prompt(project: Project, opened: Open) -> None:
    put(
        project,
        a_chatmd="""<!-- Looks at
  pictures -->
<import src="sub/b.chatmd"/>
<developer>Now: <img src="p.png" local/></developer>
<user>See <doc src="x.md" local/> and <img src="p.png" local/><img src="https://ok.example/q.gif"/>!</user>
<tool_call tool_call_id="1" function_name="f">RAW|{}|RAW</tool_call>
<tool_response tool_call_id="1">r</tool_response>
<reasoning id="2">thought</reasoning>
<system>Be brief.</system>
<user><agent src="n.chatmd" local>go</agent></user>
<user>
</user>
<tool name="search"/><tool name="nothing"/><tool name="rm" command="rm"/><tool name="get"/>""",
        sub__b_chatmd="<system>From b.</system>",
        n_chatmd=HELLO,
        x_md="the text",
        p_png=PIXEL,
    )
    project.configure(one(keys='allow_hosts = ["ok.example"]\ntools = ["search", "nothing"]'))
    async with opened() as service:
        assert failures(service) == {}
        resolved = await service.resolve("a", {}, CALL)
        encoded = base64.b64encode(PIXEL).decode()
        image = ImageBlock(data=encoded, mime_type="image/png")
        assert [each for each in service.warnings if "tool-unavailable: nothing" in each] == [
            "agents.chatmd.a: tool-unavailable: nothing, for the tenant 'default': there is no tool of this name"
        ]
        link = LinkBlock(uri="https://ok.example/q.gif", name="https://ok.example/q.gif", mime_type="image/gif")
        assert resolved.prompt.system == "From b.\n\nNow: "
        assert resolved.prompt.tools == ("search",)
        assert resolved.prompt.messages == (
            BlockMessage(role="user", content="", blocks=(image,)),
            BlockMessage(
                role="user", content="See the text and !",
                blocks=(TextBlock(text="See the text and "), image, link, TextBlock(text="!")),
            ),
            PromptMessage(role="system", content="Be brief."),
        )  # fmt: skip
        assert resolved.blocks[2:5] == (
            ("user", TextBlock(text="See ")),
            ("user", ResourceBlock("chatmd:///x.md", "the text", "text/markdown")),
            ("user", TextBlock(text=" and ")),
        )
        (info,) = service.list_agents(DEFAULT_TENANT)
        assert info.description == "Looks at pictures"
        about = resolved.about["engine/chatmd"]
        assert about == service.source(DEFAULT_TENANT, "a")
        assert about["imports"] == ["sub/b.chatmd"]
        assert about["left_out"] == {"tool_calls": 1, "tool_responses": 1, "reasoning": 1, "agents": 1}
        assert {each["name"]: each["reason"] for each in about["unavailable"]} == {
            "rm": "commands are not run",
            "nothing": "there is no tool of this name",
            "get": "`tools` of its entry leaves it out",
        }


async def test_tools_of_servers_that_the_tenant_does_not_have_are_unavailable(project: Project, opened: Open) -> None:
    mine, others, unknown = (f"http://127.0.0.1:9/{name}" for name in ("mine", "others", "unknown"))
    tools = "".join(f'<tool mcp_server="{url}" include="x,y"/>' for url in (mine, others))
    put(project, a_chatmd=f'{tools}<tool mcp_server="{unknown}"/><user>Go.</user>')
    servers = f"""[mcp_servers.mine]
url = "{mine}"
[mcp_servers.others]
url = "{others}"
tenants = ["acme"]
"""
    project.configure(one() + servers)
    async with opened() as service:
        found = service.source(DEFAULT_TENANT, "a")["unavailable"]
        assert [each["name"] for each in found] == ["x", "y", unknown]
        warned = [each for each in service.warnings if "tool-unavailable" in each]
        assert warned == [
            f"agents.chatmd.a: tool-unavailable: {each['name']}, for the tenant 'default': {each['reason']}"
            for each in found
        ]
        assert {each["reason"] for each in found} == {
            "its address is not the url of an [mcp_servers.NAME] that the tenant has"
        }


PAGE = "<html><nav>menu</nav><h1>Caf\u00e9</h1><p>a <b>bold</b> <a href='x.md'>link</a></p><script>f()</script>"
MARKED, BARE = "# Caf\u00e9\n\na **bold** [link](x.md)", "Caf\u00e9\n\na bold link"


@pytest.mark.parametrize(
    ("flags", "file", "text"),
    [("markdown", PAGE, MARKED), ("strip", PAGE, BARE), ("strip markdown", PAGE, BARE), ("", PAGE, PAGE),
     ("markdown", "<b>1</b>", "<b>1</b>")],
)  # fmt: skip
async def test_a_page_is_converted_where_its_flags_ask_for_it(
    project: Project, opened: Open, flags: str, file: str, text: str
) -> None:
    put(project, a_chatmd=f'<user><doc src="p.txt" local {flags}/></user>', p_txt=file)
    project.configure(one())
    async with opened() as service:
        assert service.source(DEFAULT_TENANT, "a")["unavailable"] == []
        assert (await service.resolve("a", {}, CALL)).prompt.messages[0].content == text


async def test_a_page_that_cannot_be_converted_stays_as_it_is_and_one_of_too_much_text_is_an_error(
    project: Project, opened: Open
) -> None:
    put(project, a_chatmd='<user><doc src="p.html" local markdown/></user>', p_html="<nav>menu</nav>")
    project.configure(one())
    async with opened() as service:
        why = "markdown has no effect, HTML stays as it is: no text"
        assert service.source(DEFAULT_TENANT, "a")["unavailable"] == [{"name": "doc p.html", "reason": why}]
        assert [each for each in service.warnings if f'<doc src="p.html">: {why}' in each]
        assert (await service.resolve("a", {}, CALL)).prompt.messages[0].content == "<nav>menu</nav>"
    put(project, p_html="<ul><li>x" * 60)  # each is indented by more than the one before
    project.configure(one() + "[agents.chatmd.a.limits]\nfs_bytes = 1000\n")
    async with opened() as service:
        (failure,) = service.failures
        assert failure.message.endswith(
            'too-large: a.chatmd:1:7: <doc src="p.html">: its text has more than 1000 bytes'
        )


async def test_parameters_are_arguments_that_stand_for_their_placeholders(project: Project, opened: Open) -> None:
    put(project, a_chatmd='<system>For {{who}}.</system><user>{{text}}<doc src="d.md" local/></user>', d_md="{{who}}")
    schema = """[agents.chatmd.a.parameters]
type = "object"
required = ["who"]
additionalProperties = false
[agents.chatmd.a.parameters.properties]
who = { type = "string", description = "A name" }
text = { type = "string" }
count = { type = "integer" }
"""
    project.configure(one() + schema)
    async with opened() as service:
        (info,) = service.list_agents(DEFAULT_TENANT)
        assert [(each.name, each.description, each.required) for each in info.arguments] == [
            ("who", "A name", False), ("text", "", False), ("count", "", False),
        ]  # fmt: skip
        filled = await prompt(service, who="{{text}}", text='<tool name="search"/>RAW|', count=3)
        assert filled.system == "For {{text}}."
        assert [each.content for each in filled.messages] == ['<tool name="search"/>RAW|{{who}}', "count: 3"]
        assert (await prompt(service)).system == "For {{who}}."
        async with problem(Code.BAD_REQUEST, "unknown argument: args"):
            await prompt(service, args={"who": "x"})


MISTAKES: dict[str, tuple[dict[str, str | bytes], str]] = {
    "unclosed": ({"a_chatmd": "\n <user>"}, "unclosed: a.chatmd:2:2: "),
    "not-utf8": ({"a_chatmd": b"<user>\xff</user>"}, "not-utf8: a.chatmd:1:7: "),
    "cycle": (
        {
            "a_chatmd": '<tool name="b" agent="b.chatmd" local/>',
            "b_chatmd": '<user><agent src="a.chatmd" local/></user>',
        },
        "import-cycle: b.chatmd:1:7: <agent src=\"a.chatmd\">: a cycle of documents: a.chatmd -> b.chatmd -> a.chatmd",
    ),
    "depth": (
        {f"{name}_chatmd": f'<user><agent src="{inner}.chatmd" local/></user>' for name, inner in
         zip("abcd", "bcde", strict=True)} | {"e_chatmd": "<user>e</user>"},
        "import-depth: d.chatmd:1:7: ",
    ),
    "inside": (
        {"a_chatmd": '<user><agent src="sub/b.chatmd" local/></user>', "sub__b_chatmd": "<user>"},
        "unclosed: sub/b.chatmd:1:1: ",
    ),
    "host": ({"a_chatmd": '<user><doc src="https://x.example/"/></user>'}, "file-outside: a.chatmd:1:7: <doc>: x.ex"),
    "no_address": ({"a_chatmd": '<user><doc src="x.md"/></user>'}, "file-outside: a.chatmd:1:7: <doc>: no address"),
    "document": ({"a_chatmd": '<user><doc src="x.md" local/></user>', "x_md": b"\xff"}, "not-utf8: a.chatmd:1:7: "),
    "image": ({"a_chatmd": '<user><img src="x.md" local/></user>', "x_md": b"x"}, "file-kind: a.chatmd:1:7: "),
    "too_many": (
        {"a_chatmd": "<user>" + "".join(f'<doc src="{n}.md" local/>' for n in range(9)) + "</user>"}
        | {f"{n}_md": b"x" * (1 << 20) for n in range(9)},
        "too-large: a.chatmd:1:",
    ),
    "missing": ({}, "file-missing: cannot read the document: No such file"),
    "huge": ({"a_chatmd": b"x" * 50_000_000}, "too-large: a.chatmd:1:1: more than 1,048,576 bytes"),
}  # fmt: skip


async def test_a_document_that_does_not_load_says_where_and_all_others_serve(project: Project, opened: Open) -> None:
    put(project, good_chatmd=HELLO)
    entries = ['[agents.chatmd.good]\npath = "good.chatmd"']
    for name, (files, _) in MISTAKES.items():
        put(project, **{f"{name}__{each}": content for each, content in files.items()})
        entries.append(f'[agents.chatmd.{name}]\npath = "{name}/a.chatmd"')
    project.configure("\n".join(entries))
    async with opened() as service:
        assert {each.name for each in service.failures} == set(MISTAKES)
        for failure in service.failures:
            _, expected = MISTAKES[failure.name]
            assert failure.message.replace(f"{failure.name}/", "").startswith(expected), failure.message
            assert failure.kind == "agent.chatmd"
            in_place = re.search(r" a\.chatmd:(\d+):", failure.message.replace(f"{failure.name}/", ""))
            assert failure.line == (int(in_place[1]) if in_place else None)
        assert [info.name for info in service.list_agents(DEFAULT_TENANT)] == ["good"]
        async with problem(Code.NOT_FOUND, "failed to load"):
            await prompt(service, "cycle")


async def test_each_document_of_the_folder_is_an_agent_with_the_keys_beside_it(project: Project, opened: Open) -> None:
    put(project, p__one_chatmd=HELLO, p__two_chatmd=HELLO, p__two_toml='description = "D"\ntitle = "T"\n',
        p__three_chatmd=HELLO, p__three_toml="descripton = 'x'", p__bad_CHATMD="<user>", p__good_chatmd=HELLO,
        p__good_CHATMD=HELLO, p__dir_chatmd=HELLO, p__notes_md="x", p__a_chatmd="never read", p__search_chatmd=HELLO,
        p__search_toml='expose = ["prompt", "tool"]')  # fmt: skip
    (project.folder / "p/no name.chatmd").write_text(HELLO)
    os.mkfifo(project.folder / "p/fifo.chatmd")
    put(project, a_chatmd=HELLO)
    project.configure('[agents.chatmd]\ndir = "p"\n' + one() + project.script("two", agent()))
    async with opened() as service:
        infos = {info.name: info for info in service.list_agents(DEFAULT_TENANT)}
        assert {name: info.source for name, info in infos.items()} == {
            "a": "chatmd", "two": "lua", "one": "chatmd", "good": "chatmd",
        }  # fmt: skip
        found = failures(service)
        assert set(found) == {"three", "bad", "good", "no name", "fifo", "dir", "a", "two", "search"}
        assert "three.toml: agents.chatmd.three.descripton: unknown key; did you mean 'description'?" in found["three"]
        assert found["bad"].startswith("unclosed: p/bad.CHATMD:1:1:")
        assert "another file of this name comes first: good.CHATMD" in found["good"]
        assert "another agent named 'two' comes first" in found["two"]
        assert "not a regular file" in found["fifo"] or "Invalid argument" in found["fifo"]
        assert "another tool named 'search'" in found["search"]
        by_name = {each.name: each for each in service.failures}
        assert by_name["three"].path == project.folder / "p/three.toml"
        assert by_name["no name"].path == project.folder / "p/no name.chatmd"


def test_a_folder_of_too_much_is_read_up_to_its_bounds(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    put(project, a_chatmd=HELLO, b_chatmd=HELLO, c_chatmd=HELLO)

    def found() -> tuple[list[str], list[tuple[str, str]]]:
        folder = folders.documents_of(project.folder, {})
        return [name for name, _ in folder.entries], [(each.name, each.message) for each in folder.failures]

    monkeypatch.setattr(folders, "MAX_DOCUMENTS", 2)
    assert found() == (["a", "b"], [("c", "too-large: c.chatmd: the folder has more than 2 documents")])
    monkeypatch.setattr(folders, "MAX_BYTES", len(HELLO))
    assert [name for name, _ in found()[1]] == ["b", "c"]
    monkeypatch.setattr(folders, "MAX_NAMES", 2)
    assert found() == ([], [("dir", "too-large: more than 2 files")])


@asynccontextmanager
async def watched(opened: Open, project: Project) -> AsyncIterator[tuple[Service, list[Change]]]:
    """The service, reloading, and the changes that it tells of."""
    told: list[Change] = []
    async with opened() as service, trio.open_nursery() as nursery:
        nursery.start_soon(reload_on_change, service, {}, project.folder)
        with service.changes.heard_by(told.append):
            yield service, told
        nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not is_so():  # noqa: ASYNC110  # what is waited for are files
            await trio.sleep(0.02)


async def test_edits_of_all_that_a_document_reads_are_heard_and_a_broken_one_keeps_the_last_good(
    project: Project, opened: Open
) -> None:
    put(project, a_chatmd='<tool name="t" command="t"/><import src="b.chatmd"/><user><doc src="d.md" local/></user>',
        b_chatmd="<system>1</system>", d_md="x")  # fmt: skip
    project.configure(one())
    config = (project.folder / "engine.toml").read_text()

    async with watched(opened, project) as (service, told):

        async def heard(edit: Callable[[], object]) -> AgentPrompt:
            told.clear()
            edit()
            await until(lambda: bool(told))
            assert [each.agents for each in told] == [True]
            return await prompt(service)

        assert (await heard(partial(put, project, b_chatmd="<system>22</system>"))).system == "22"
        assert (await heard(partial(put, project, d_md="yy"))).messages[0].content == "yy"
        os.unlink(project.folder / "d.md")
        await until(lambda: bool(service.failures))
        assert (service.failures[0].kept, service.failures[0].line) == (True, 1)
        assert (await prompt(service)).messages[0].content == "yy"
        assert (await heard(partial(put, project, d_md="zzz"))).messages[0].content == "zzz"
        assert service.failures == ()
        (project.folder / "engine.toml").write_text(f"{config}\n[agents.x]\ndescription = ''\nsystem_prompt = ''\n")
        await until(lambda: len(service.list_agents(DEFAULT_TENANT)) == 2)
        (warning,) = service.warnings  # also of a document that was not read again
        assert "commands are not run" in warning


async def test_new_and_deleted_documents_and_keys_of_the_folder_are_seen(project: Project, opened: Open) -> None:
    put(project, p__a_chatmd=HELLO)
    project.configure('[agents.chatmd]\ndir = "p"\n')

    async with watched(opened, project) as (service, _):

        def listed() -> dict[str, str]:
            return {info.name: info.description for info in service.list_agents(DEFAULT_TENANT)}

        put(project, p__b_chatmd=HELLO)
        await until(lambda: set(listed()) == {"a", "b"})
        before = service.registry.agent("default", "a")
        put(project, p__b_toml='description = "D"')
        await until(lambda: listed().get("b") == "D")
        assert service.registry.agent("default", "a") is before  # what did not change was not read again
        put(project, p__b_toml="description = 3")
        await until(lambda: bool(service.failures))
        assert (listed()["b"], service.failures[0].kept) == ("D", True)
        os.unlink(project.folder / "p/b.chatmd")
        await until(lambda: set(listed()) == {"a"})


@asynccontextmanager
async def web(answers: Mapping[str, bytes]) -> AsyncIterator[tuple[str, list[str]]]:
    """A server on loopback with these answers by path, and the paths that were asked for."""
    asked: list[str] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some()
            asked.append(head.split()[1].decode())
            await stream.send_all(answers.get(asked[-1], b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", asked
        nursery.cancel_scope.cancel()


def page(body: str, kind: str = "text/html; charset=utf-8") -> bytes:
    content = body.encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        kind.encode(), len(content), content,
    )  # fmt: skip


async def test_addresses_of_allowed_hosts_are_fetched_once_a_load_without_redirects(
    project: Project, opened: Open
) -> None:
    moved = b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"
    inner = page('<user><doc src="y.md" local/></user>')
    answers = {
        "/x": page("<b>\u00e9</b>"), "/moved": moved, "/big": page("x" * (1 << 20) + "y"), "/inner": inner,
        "/n": page("<system>From afar</system><tool name='read_file'/>"),
    }  # fmt: skip
    async with web(answers) as (url, asked):
        put(project, a_chatmd=f'<user><doc src="{url}/x"/><doc src="{url}/x"/><agent src="{url}/n"/></user>')
        entries = [one(keys=f'allow_hosts = ["{url.removeprefix("http://")}"]')]
        for name in ("moved", "big", "none", "inner"):
            tag = "agent" if name == "inner" else "doc"
            put(project, **{f"{name}_chatmd": f'<user><{tag} src="{url}/{name}"/></user>'})
            keys = f'path = "{name}.chatmd"\nallow_hosts = ["{url.removeprefix("http://")}"]'
            entries.append(f"[agents.chatmd.{name}]\n{keys}")
        project.configure("\n".join(entries))
        async with opened() as service:
            assert (await prompt(service)).messages[0].content == "<b>\u00e9</b>" * 2
            assert (asked.count("/x"), asked.count("/n")) == (1, 1)
            agent = service.registry.agent("default", "a")
            assert isinstance(agent, ChatmdAgent)
            nested = agent.program.documents[f"{url}/n"]
            assert (nested.description, nested.folder) == ("From afar", "")
            assert [each.name for each in nested.unavailable] == ["read_file"]
            found = failures(service)
            assert set(found) == {"moved", "big", "none", "inner"}
            assert found["moved"].startswith("file-missing: moved.chatmd:1:7: ")
            assert "status 302, and redirects are not followed" in found["moved"]
            assert found["none"].startswith("file-missing: none.chatmd:1:7: ")
            assert found["big"].startswith("too-large: big.chatmd:1:7: ")
            assert found["inner"].startswith(f"file-outside: {url}/inner:1:7: ")
            assert "reads no files" in found["inner"]
