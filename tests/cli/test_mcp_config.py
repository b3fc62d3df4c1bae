"""`engine mcp-config`: each client gets what it can read, with the right address, and no key ever."""

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from cli.commands.mcp_config import CLIENTS, ClientName, Local, Remote, mcp_address

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-this-is-the-key-itself"
TENANTS = '[tenants]\nenabled = true\nstore = "tenants.sqlite"\noperator_key = "operator-key-of-the-test"\n'


every_client = pytest.mark.parametrize("client", get_args(ClientName))


def entry(client: str, snippet: str) -> dict[str, Any]:
    """What a client makes of its snippet: `url` and `headers`, or `command` and `args`. Other text is an error."""
    if client in ("claude-code", "inspector"):
        # A shell expands the key, as it does when the line is pasted.
        environ = {**os.environ, "ENGINE_KEY": KEY, "MINE": KEY}
        words = subprocess.run(
            ["sh", "-c", f"set -- {snippet}\nprintf '%s\\0' \"$@\""], env=environ, capture_output=True, check=True
        )
        return _of_words(words.stdout.decode().split("\0")[:-1])
    if client == "codex":
        (found,) = tomllib.loads(snippet)["mcp_servers"].values()
        variable = found.pop("bearer_token_env_var", None)
        return found | ({} if variable is None else {"headers": {"Authorization": f"Bearer ${variable}"}})
    outer = {"cursor": "mcpServers", "vscode": "servers"}[client]
    (found,) = json.loads(snippet)[outer].values()
    return dict(found)


def _of_words(words: list[str]) -> dict[str, Any]:
    if "--" in words:
        command, *arguments = words[words.index("--") + 1 :]
        return {"command": command, "args": arguments}
    url = next(word for word in words if "://" in word)
    if "--header" not in words:
        return {"url": url}
    name, _, value = words[words.index("--header") + 1].partition(": ")
    return {"url": url, "headers": {name: value}}


@every_client
def test_a_snippet_has_the_address_of_the_configuration_and_no_key_where_none_is_asked_for(engine, tmp_path, client):
    (tmp_path / "engine.toml").write_text('[server]\nbind = "127.0.0.1:7444"\n')
    ended = engine("mcp-config", client)
    assert ended.code == 0
    assert len(ended.err.splitlines()) == 1  # where it goes
    found = entry(client, ended.out)
    assert found["url"] == "http://127.0.0.1:7444/mcp"
    assert "headers" not in found


BEARER = {
    "claude-code": f"Bearer {KEY}",
    "inspector": f"Bearer {KEY}",
    "cursor": "Bearer ${env:%s}",
    "vscode": "Bearer ${input:engine-helper-key}",
    "codex": "Bearer $%s",
}


@every_client
def test_a_key_is_a_reference_and_its_value_is_never_printed(engine, tmp_path, client):
    (tmp_path / "engine.toml").write_text(TENANTS)
    for options, variable in (((), "ENGINE_KEY"), (("--key-env", "MINE"), "MINE")):
        ended = engine("mcp-config", client, "--agent", "helper", *options, ENGINE_KEY=KEY, MINE=KEY)
        assert ended.code == 0
        assert KEY not in ended.out + ended.err
        assert variable in ended.out
        found = entry(client, ended.out)
        assert found["url"] == "http://127.0.0.1:7331/mcp?agent=helper"
        expected = BEARER[client]
        assert found["headers"] == {"Authorization": expected % variable if "%s" in expected else expected}


def test_vs_code_asks_for_the_key_that_the_header_refers_to(engine):
    snippet = json.loads(engine("mcp-config", "vscode", "--key-env", "MINE").out)
    (asked,) = snippet["inputs"]
    assert (asked["type"], asked["password"]) == ("promptString", True)
    assert snippet["servers"]["engine"]["headers"]["Authorization"] == f"Bearer ${{input:{asked['id']}}}"


@every_client
def test_the_process_of_a_snippet_starts_from_anywhere(engine, tmp_path, client):
    (tmp_path / "engine.toml").write_text(
        '[agents."a.b"]\ndescription = "d"\nsystem_prompt = "p"\n[db]\npath = "s.db"\n'
    )
    ended = engine("mcp-config", client, "--stdio", "--agent", "a.b")
    assert ended.code == 0
    found = entry(client, ended.out)
    arguments = ["serve", "--stdio", "--agent", "a.b", "--directory", str(tmp_path)]
    assert found["args"] == [*arguments, "--config", str(tmp_path / "engine.toml")]
    if client != "cursor":
        return  # one start is enough: they are all the same
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    messages = [("initialize", hello), ("prompts/list", {})]
    lines = [{"jsonrpc": "2.0", "id": n, "method": method, "params": p} for n, (method, p) in enumerate(messages)]
    done = subprocess.run(
        [found["command"], *found["args"]],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, prompts = map(json.loads, done.stdout.splitlines())
    assert [prompt["name"] for prompt in prompts["result"]["prompts"]] == ["a.b"]


def test_names_and_paths_with_odd_letters_stay_whole():
    odd = Local("engine", "/home/you & me/it's $HOME/engine", ("--directory", 'a "b" `c` \\ é 🦭'))
    for client, told in CLIENTS.items():
        found = entry(client, told.local(odd))
        assert (found["command"], tuple(found["args"])) == (odd.command, odd.arguments)
        remote = Remote("engine", "https://example.com/x/mcp?a=1&agent=b%26c", None)
        assert entry(client, told.remote(remote))["url"] == remote.url


@pytest.mark.parametrize(
    ("url", "agent", "address"),
    [
        ("http://127.0.0.1:7331", None, "http://127.0.0.1:7331/mcp"),
        ("http://127.0.0.1:7331/", "a", "http://127.0.0.1:7331/mcp?agent=a"),
        ("https://example.com/engine/mcp", None, "https://example.com/engine/mcp"),
        ("https://example.com/mcp?x=1", "a.b", "https://example.com/mcp?x=1&agent=a.b"),
        ("http://[::1]:80/mcp", None, "http://[::1]:80/mcp"),
    ],
)
def test_the_address_of_mcp_is_completed(url, agent, address):
    assert mcp_address(url, agent) == address


@pytest.mark.parametrize(
    "url", ["", "example.com", "ftp://example.com", "http://", "http://x:99999", "http://x/#a", "http://[::1"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="is not an address like"):
        mcp_address(url, None)


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("0.0.0.0:80", "http://127.0.0.1:80/mcp"),
        ("[::]:81", "http://[::1]:81/mcp"),
        ("[::1]:82", "http://[::1]:82/mcp"),
    ],
)
def test_a_bind_to_every_address_is_reached_on_loopback(engine, tmp_path, bind, url):
    (tmp_path / "engine.toml").write_text(f'[server]\nbind = "{bind}"\n')
    assert json.loads(engine("mcp-config", "cursor").out)["mcpServers"]["engine"]["url"] == url


MISUSE = {
    ("emacs",): 'Choose from: "claude-code", "cursor", "vscode", "codex", "inspector"',
    ("cursor", "--url", "nowhere"): "error: --url: 'nowhere' is not an address",
    ("cursor", "--agent", "a b"): "error: --agent: 'a b' is not a name of an agent",
    ("cursor", "--key-env", "A-B"): "error: --key-env: 'A-B' is not a name",
    ("cursor", "--stdio", "--url", "http://x"): "error: --stdio has the client start the engine",
    ("cursor", "--stdio", "--key-env", "X"): "error: --stdio has the client start the engine",
}


@pytest.mark.parametrize(("arguments", "message"), MISUSE.items(), ids=[" ".join(key) for key in MISUSE])
def test_misuse_is_exit_2_and_prints_nothing(engine, arguments, message):
    ended = engine("mcp-config", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_a_port_that_is_not_known_has_to_be_said(engine, tmp_path):
    (tmp_path / "engine.toml").write_text('[server]\nbind = "127.0.0.1:0"\n')
    ended = engine("mcp-config", "cursor")
    assert (ended.code, ended.out) == (2, "")
    assert "--url" in ended.err
    assert engine("mcp-config", "cursor", "--url", "http://127.0.0.1:5").code == 0


# ---- the page ---------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
HEADINGS = {
    "claude-code": "Claude Code",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "codex": "Codex",
    "inspector": "Inspector",
}


@every_client
def test_the_page_has_a_row_and_every_form_of_the_snippet(client):
    told, heading = CLIENTS[client], HEADINGS[client]
    assert f"| [{heading}](#{heading.lower().replace(' ', '-')}) |" in PAGE
    text = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    project = "/home/you/project"
    arguments = ("serve", "--stdio", "--directory", project, "--config", f"{project}/engine.toml")
    url = "http://127.0.0.1:7331/mcp"
    # The forms over HTTP are run by tests/test_docs.py too, where they stand with their commands.
    assert f"\n{told.remote(Remote('engine', url))}\n" in text
    assert f"$ engine mcp-config {client}\n" in text
    assert re.search(rf"^\$ engine mcp-config {client} .*--key-env ENGINE_KEY$", text, re.MULTILINE)
    assert f"\n{told.local(Local('engine', f'{project}/.venv/bin/engine', arguments))}\n" in text


def test_every_client_of_the_command_is_in_the_one_list():
    assert list(CLIENTS) == list(get_args(ClientName)) == list(HEADINGS)
    assert shlex.split(CLIENTS["claude-code"].remote(Remote("engine", "http://x/mcp")))[:3] == ["claude", "mcp", "add"]
