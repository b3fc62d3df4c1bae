"""What the command line says of `[tenants.oauth]`."""

import json
from pathlib import Path
from typing import Any

import pytest
from oauth_support import fake_issuer

from cli.commands.doctor import doctor
from cli.commands.mcp_config import mcp_config

CONFIG = """
[db]
path = "engine.sqlite"
[sandbox]
workers = 1
reserve = 0
[tenants]
enabled = true
[tenants.oauth]
resource = "https://engine.example.com/mcp"
[tenants.oauth.issuers.sso]
issuer = "ISSUER"
tenant = "acme"
allow_hosts = ["HOST"]
"""


def configured(folder: Path, url: str) -> Path:
    path = folder / "engine.toml"
    path.write_text(CONFIG.replace("ISSUER", url).replace("HOST", url.removeprefix("http://")))
    return path


async def test_doctor_fetches_the_keys_of_issuers_and_is_exit_1_where_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with fake_issuer() as issuer:
        path = configured(tmp_path, issuer.url)
        await doctor(config=path, as_json=True)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["issuers"] == [{"name": "sso", "ok": True, "message": None}]
        issuer.answers["/keys"] = 503
        assert await doctor(config=path) != 0
        said = capsys.readouterr().out
        assert "✗ issuer       sso: the answer has status 503" in said
        assert "Everything is in order" not in said


def test_mcp_config_leaves_the_key_to_the_log_in_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = configured(tmp_path, "http://127.0.0.1:9")
    mcp_config("cursor", config=path)
    assert "headers" not in capsys.readouterr().out
    mcp_config("cursor", config=path, key_env="MY_KEY")
    assert "MY_KEY" in capsys.readouterr().out
