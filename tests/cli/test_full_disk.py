"""A disk that is full is called that by whatever writes to it, and with room the same works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import inherited
from effort import part

SCRIPT = Path(__file__).with_name("full_disk.py")
PATH = f"{SCRIPT.parent}:{SCRIPT.parents[1]}"


def unshared(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a program with mounts of its own, which end with it."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) here")
    permitted = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False, text=True
    )
    if permitted.returncode:
        pytest.skip(f"mounting is not permitted here: {permitted.stderr.strip()}")
    path = os.pathsep.join((PATH, os.environ["PYTHONPATH"]))
    return subprocess.run(
        ["unshare", "-m", "--", *words], env=inherited() | {"PYTHONPATH": path}, capture_output=True,
        text=True, check=False, timeout=400,
    )  # fmt: skip


# Each kind and each state; the other pairs are tried by `make fuzz`.
CASES = (("blocks", "used"), ("inodes", "fresh"), ("blocks", "fresh"), ("inodes", "used"))


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "state"), part(CASES, lambda case: case[0], one_in=2))
def test_every_write_to_a_full_disk_says_so_and_with_room_the_next_one_works(
    tmp_path: Path, kind: str, state: str
) -> None:
    ended = unshared(sys.executable, str(SCRIPT), str(tmp_path), kind, state)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    for each in found:
        full, said = each["full"], (each["words"], each["full"])
        assert "Traceback" not in full["err"], said
        errors = [line for line in full["err"].splitlines() if line.startswith("error:")]
        if full["code"] == 0:
            assert errors == [], said
        else:
            assert full["code"] == 2, said
            assert len(errors) == 1, said
            assert "full" in errors[0] or "No space left" in errors[0], said
            assert "permission" not in errors[0], said
        assert each["room"]["code"] == 0, (each["words"], each["room"])
    refused = {each["words"] for each in found if each["full"]["code"]}
    assert len(refused) >= 8, refused


def test_a_disk_that_fills_up_while_everything_is_open_is_told_without_paths_and_heals(tmp_path: Path) -> None:
    ended = unshared(sys.executable, str(SCRIPT), str(tmp_path), "blocks", "open")
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout[ended.stdout.rindex("\n[") + 1 :])
    for each in found:
        said = (each["words"], each["full"])
        assert each["full"]["code"] in ("unavailable", "store"), said
        assert "full" in each["full"]["err"] or "No space left" in each["full"]["err"], said
        assert str(tmp_path) not in each["full"]["err"], said
        assert each["room"] == {"code": 0, "err": ""}, each
