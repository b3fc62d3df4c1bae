"""The wheel and the sdist: what is in them, and that a server runs from the wheel without the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path
from subprocess import PIPE

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


def test_the_wheel_has_the_program_with_its_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "sandbox/prelude/core.lua",
        "engine/config/template.toml",
        "benchmarks/scenarios/cpu.toml",
        "editor/lua/engine.lua",
        "cli/demo/engine.toml",
        "cli/demo/agents/incident-responder.lua",
        "server/rest/routes.py",
    ):
        assert needed in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    packages = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert "tests" not in packages
    assert [name for name in names if name.startswith(("benchmarks/aims", "benchmarks/quality"))] == []
    assert [name for name in names if "__pycache__" in name] == []


def test_the_sdist_has_what_it_takes_to_build_and_test(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    for needed in ("pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/test_wheel.py", "requirements.lock"):
        assert needed in names
    assert [name for name in names if name.startswith((".venv", ".git/"))] == []


def test_a_server_runs_from_the_wheel_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    home = tmp_path / "clean"
    venv.create(home)
    python = home / "bin" / "python"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ENGINE_", "CTX_", "PYTHON"))}
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, env=environ, timeout=120)
    (packages,) = home.glob("lib/python3*/site-packages")
    # The dependencies are those of this environment: nothing is downloaded. Its editable install is not seen by this.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = subprocess.run(
        [python, "-c", "import engine; print(engine.__file__)"],
        cwd=tmp_path, env=environ, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert where.stdout.strip().startswith(str(home))
    program = home / "bin" / "engine"
    serve = [program, "demo", "--bind", "127.0.0.1:0"]
    server = subprocess.Popen(serve, cwd=tmp_path, env=environ, stdout=PIPE, stderr=PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        url = next(line.split()[-1] for line in lines if "listening on" in line)
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            assert json.load(answer)["status"] == "ok"
        with urllib.request.urlopen(f"{url}/agents/list", timeout=30) as answer:
            assert "incident-responder" in [agent["name"] for agent in json.load(answer)["agents"]]
        assert (tmp_path / "engine-demo" / "engine.toml").exists()
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
