"""`engine model`: the configured models are listed and tried; a scripted one is served by a process of its own."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_support import Engine, command_line, inherited
from every_command import SECRETS_KEY

SCRIPT = """
[[reply]]
when = "are you there"
text = "Yes."
usage = { input = 1000, cached = 400, output = 100 }
[[reply]]
when = "busy"
status = 503
[[reply]]
text = "I see."
"""
KEY = "sk-0123456789abcdef"


@contextmanager
def stub(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`engine model stub` on a free port, and its address."""
    (folder / "script.toml").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "model", "stub", str(folder / "script.toml"), "--bind", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        env=inherited(),
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.fullmatch(r"Serving 3 replies at (http://127\.0\.0\.1:\d+)\n", first)
        assert found, first
        yield found[1], process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_scripted_model_is_served_and_called_on_both_wires_until_sigterm(engine: Engine, tmp_path: Path) -> None:
    with stub(tmp_path) as (url, process):
        (tmp_path / "engine.toml").write_text(f"""
[models]
default = "claude"
[models.fast]
api = "openai"
url = "{url}/v1"
model = "gpt"
key = "{KEY}"
price = {{ input = 3, cached_input = 0.3, output = 15 }}
[models.claude]
api = "anthropic"
url = "{url}"
model = "claude"
retries = 0
[models.theirs]
api = "anthropic"
model = "claude"
tenants = ["acme"]
""")
        listed = engine("model", "list", "--json")
        assert KEY not in listed.out
        assert [(row["name"], row["api"], row["at"], row["key"], row["default"]) for row in listed.json["models"]] == [
            ("fast", "openai", f"{url}/v1", "set", False),
            ("claude", "anthropic", url, None, True),
        ]
        tried = engine("model", "test", "fast", "--json")
        assert tried.code == 0
        answer = tried.json
        assert answer.pop("seconds") >= 0
        assert answer == {
            "name": "fast", "ok": True, "answer": "Yes.", "stopped": "stop", "input_tokens": 1000,
            "cached_tokens": 400, "output_tokens": 100, "estimated": False, "cost_usd": 0.00342,
        }  # fmt: skip
        plain = engine("model", "test", "claude", "--prompt", "look")
        assert plain.out.startswith("I see.\nclaude: answered in ")
        busy = engine("model", "test", "claude", "--prompt", "busy?")
        assert (busy.code, busy.err) == (1, "error: model 'claude': its server answers with status 503; api_error\n")
        as_json = engine("model", "test", "claude", "--prompt", "busy?", "--json")
        assert (as_json.code, as_json.json["error"]["code"]) == (1, "model_error")
        unknown = engine("model", "test", "clade")
        assert (unknown.code, unknown.err) == (2, "error: unknown model 'clade'; did you mean 'claude'?\n")
        assert engine("model", "test", "theirs").code == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout is not None
        heard = [line for line in process.stdout.read().splitlines() if not line.startswith(" ")]
    assert heard == [
        "1 openai 200 reply 1", "2 anthropic 200 reply 3", "3 anthropic 503 reply 2", "4 anthropic 503 reply 2",
    ]  # fmt: skip


def test_a_secret_of_the_tenant_is_its_key(engine: Engine, tmp_path: Path) -> None:
    with stub(tmp_path) as (url, _):
        (tmp_path / "engine.toml").write_text(f"""
[tenants]
enabled = true
secrets_key = "{SECRETS_KEY}"
[models.mine]
api = "openai"
url = "{url}/v1"
model = "gpt"
key = "secret:MODEL_KEY"
tenants = ["acme"]
""")
        assert engine("tenant", "create", "acme").code == 0
        missing = engine("model", "test", "mine", "--tenant", "acme")
        assert missing.code == 2
        assert "models.mine.key names the secret 'MODEL_KEY', which the tenant does not have" in missing.err
        engine("secret", "set", "acme", "MODEL_KEY", "--host", "api.example.com", stdin=KEY.encode())
        elsewhere = engine("model", "test", "mine", "--tenant", "acme")
        assert elsewhere.code == 2
        assert "is bound to api.example.com" in elsewhere.err
        assert KEY not in elsewhere.err
        host = url.removeprefix("http://")
        engine("secret", "set", "acme", "MODEL_KEY", "--host", host, stdin=KEY.encode())
        assert engine("model", "test", "mine", "--tenant", "acme").code == 0


def test_no_models_are_said_to_be_none(engine: Engine) -> None:
    assert engine("model", "list").out == "No models.\n"
    assert engine("model", "list", "--json").json == {"models": []}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.toml",), "error: missing.toml: cannot be read: No such file or directory\n"),
        (("bad.toml",), "error: bad.toml: reply 1, key fault: input should be 'stall', 'cut', 'garbage' or 'huge'\n"),
        (("good.toml", "--bind", "here"), "error: --bind: expected HOST:PORT, got 'here'\n"),
        (("good.toml", "--bind", "192.0.2.1:80"), "error: cannot listen at 192.0.2.1:80: "),
    ],
)
def test_a_stub_that_cannot_be_served_says_why(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "bad.toml").write_text('[[reply]]\nfault = "burn"\n')
    (tmp_path / "good.toml").write_text('[[reply]]\ntext = "x"\n')
    ended = command_line("model", "stub", *arguments, cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(said)


def test_json_of_a_list_is_whole(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text(
        '[models.a]\napi = "script"\npath = "a.toml"\nprice = { input = 1, output = 2 }\n'
    )
    (row,) = json.loads(engine("model", "list", "--json").out)["models"]
    assert row["price"] == {"input": 1.0, "cached_input": None, "output": 2.0}
    assert (row["at"], row["max_output_tokens"], row["context_tokens"]) == ("a.toml", 4096, 128_000)
