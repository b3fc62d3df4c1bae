"""A worker whose Lua layer is bypassed: every system call it could try, and each layer by itself.

The processes are made and confined by `attempts.py`, in a program of its own; here is what must become of them.
"""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from security import attempts
from security.attempts import ATTEMPTS, EXEC_WORKED, OWN_LAYERS, Job

from sandbox.confine import OWN, landlock

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls are those of x86-64")

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="shows what root gives up")


def _landlock_abi() -> int:
    try:
        return landlock.abi()
    except OSError:
        return 0


LANDLOCK_ABI = _landlock_abi()
KILLED = [name for name, attempt in ATTEMPTS.items() if attempt.full == "SIGSYS"]
TRIED_UNCONFINED = [name for name, attempt in ATTEMPTS.items() if attempt.control is not None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its wait status, and what it said before."""

    status: int
    told: dict[str, Any]

    @property
    def how(self) -> str:
        """The signal that ended it, or the result that it told."""
        assert "failed" not in self.told, self.told
        if os.WIFSIGNALED(self.status):
            return signal.Signals(os.WTERMSIG(self.status)).name
        code = os.WEXITSTATUS(self.status)
        if code == EXEC_WORKED:
            return "ok"
        assert code == 0
        return str(self.told.get("result", self.told.get("said")))


def _perform(jobs: Iterable[Job]) -> list[Ended]:
    jobs = list(jobs)
    done = subprocess.run(
        [sys.executable, attempts.__file__],
        input=json.dumps([asdict(job) for job in jobs]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(told.pop("status"), told) for told in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def confined() -> dict[str, Ended]:
    return dict(zip(ATTEMPTS, _perform(Job(name) for name in ATTEMPTS), strict=True))


@pytest.fixture(scope="module")
def seccomp_alone() -> dict[str, Ended]:
    # no_new_privs stays: without it an ordinary user may not install a filter.
    jobs = [Job(name, off=_all_but("seccomp", "no_new_privs")) for name in KILLED]
    return dict(zip(KILLED, _perform(jobs), strict=True))


@pytest.fixture(scope="module")
def unconfined() -> dict[str, Ended]:
    jobs = [Job(name, off=OWN_LAYERS) for name in TRIED_UNCONFINED]
    return dict(zip(TRIED_UNCONFINED, _perform(jobs), strict=True))


def _all_but(*layers: str) -> tuple[str, ...]:
    return tuple(name for name in OWN_LAYERS if name not in layers)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_attempt_of_a_confined_process(name: str, confined: dict[str, Ended]) -> None:
    ended = confined[name]
    if name.startswith("int 0x80"):
        # A fault where the kernel offers no 32-bit calls: then there is nothing to refuse.
        assert ended.how in ("SIGSYS", "SIGSEGV")
    else:
        assert ended.how == ATTEMPTS[name].full
    required = {"process", "no_new_privs", "rlimits", "seccomp"}
    assert {layer for layer in required if ended.told["layers"][layer] != "active"} == set()


@pytest.mark.parametrize("name", KILLED)
def test_seccomp_alone_kills(name: str, seccomp_alone: dict[str, Ended]) -> None:
    assert seccomp_alone[name].how in (("SIGSYS", "SIGSEGV") if name.startswith("int 0x80") else ("SIGSYS",))


@pytest.mark.parametrize("name", TRIED_UNCONFINED)
def test_the_same_attempt_without_any_layer(name: str, unconfined: dict[str, Ended]) -> None:
    """The control: what was killed above is something that works, or fails for another reason."""
    assert unconfined[name].how == ATTEMPTS[name].control
    assert set(unconfined[name].told["layers"].values()) == {"off"}


@dataclass(frozen=True, slots=True)
class Alone:
    """What one layer does to one attempt when every other layer of the worker is off."""

    layer: str
    name: str
    how: str
    without: str = "ok"
    as_user: bool = False
    abi: int = 0


ALONE = (
    Alone("process", "read an inherited descriptor", "EBADF"),
    Alone("process", "write to an inherited file", "EBADF"),
    Alone("process", "tell dumpable", "0", without="1"),
    Alone("process", "tell the parent-death signal", "9", without="0"),
    Alone("landlock", "open", "EACCES", abi=1),
    Alone("landlock", "openat", "EACCES", abi=1),
    Alone("landlock", "open as Python does", "EACCES", abi=1),
    Alone("landlock", "list a folder as Python does", "EACCES", abi=1),
    Alone("landlock", "creat", "EACCES", abi=1),
    Alone("landlock", "mkdir", "EACCES", abi=1),
    Alone("landlock", "unlink", "EACCES", abi=1),
    Alone("landlock", "symlink", "EACCES", abi=1),
    Alone("landlock", "execve", "EACCES", abi=1),
    Alone("landlock", "truncate", "EACCES", abi=3),
    Alone("landlock", "connect over TCP", "EACCES", abi=4),
    Alone("landlock", "bind over TCP", "EACCES", abi=4),
    Alone("landlock", "connect to an abstract Unix socket", "EPERM", abi=6),
    Alone("landlock", "kill another process", "EPERM", abi=6),
    # What it does not stop: this is what the other layers are for.
    Alone("landlock", "stat", "ok", abi=1),
    Alone("landlock", "send over UDP", "ok", abi=1),
    Alone("landlock", "chmod", "ok", abi=1),
    Alone("landlock", "fork", "ok", abi=1),
    Alone("rlimits", "mmap of 2 GiB", "ENOMEM"),
    Alone("rlimits", "write to an inherited file", "EFBIG"),
    Alone("rlimits", "open sixteen files", "EMFILE"),
    Alone("rlimits", "fork", "EAGAIN", as_user=True),
    Alone("rlimits", "clone3", "EAGAIN", as_user=True),
    Alone("rlimits", "burn CPU time", "SIGKILL"),
    Alone("rlimits", "open", "ok"),
)


def _result(job: Job) -> Ended:
    return _perform([job])[0]


@pytest.fixture(scope="module")
def alone_and_without() -> dict[Alone, tuple[Ended, Ended | None]]:
    """Each entry of `ALONE` with its layer alone, and with none (but what would burn for its whole patience)."""
    jobs: dict[tuple[Alone, str], Job] = {}
    for alone in ALONE:
        # Landlock asks for no_new_privs where we are not root; by itself that stops none of these.
        off = _all_but(alone.layer, *(["no_new_privs"] if alone.layer == "landlock" else []))
        jobs[alone, "alone"] = Job(alone.name, off=off, as_user=alone.as_user)
        if alone.name != "burn CPU time":
            jobs[alone, "without"] = Job(alone.name, off=OWN_LAYERS, as_user=alone.as_user)
    ended = dict(zip(jobs, _perform(jobs.values()), strict=True))
    return {alone: (ended[alone, "alone"], ended.get((alone, "without"))) for alone in ALONE}


@pytest.mark.parametrize("alone", ALONE, ids=lambda a: f"{a.layer}: {a.name}")
def test_layer_alone(alone: Alone, alone_and_without: dict[Alone, tuple[Ended, Ended | None]]) -> None:
    if alone.abi > LANDLOCK_ABI:
        pytest.skip(f"Landlock ABI {LANDLOCK_ABI} of this kernel does not know this")
    ended, without = alone_and_without[alone]
    assert ended.told["layers"][alone.layer] == "active"
    assert ended.how == alone.how
    if without is not None:
        assert without.how == alone.without


@pytest.mark.parametrize("name", ["mmap writable and PROT_EXEC", "mprotect PROT_EXEC"])
def test_mdwe_alone(name: str, unconfined: dict[str, Ended]) -> None:
    ended = _result(Job(name, off=_all_but("mdwe")))
    if ended.told["layers"]["mdwe"] != "active":
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert (ended.how, unconfined[name].how) == ("EACCES", "ok")


@ROOT_ONLY
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("open", "EACCES"),  # a file of root's own
        ("chmod", "EPERM"),
        ("unlink", "EACCES"),
        ("mkdir", "EACCES"),
        ("kill another process", "EPERM"),
        ("setuid 0", "EPERM"),
        ("chroot", "EPERM"),
        ("sethostname", "EPERM"),
    ],
)
def test_privileges_alone(name: str, how: str) -> None:
    ended = _result(Job(name, off=_all_but("privileges")))
    assert ended.told["layers"]["privileges"] == "active"
    assert ended.how == how


@ROOT_ONLY
def test_no_new_privs_alone() -> None:
    name = "execve of a set-uid program"
    without = _result(Job(name, off=OWN_LAYERS, as_user=True))
    if without.how != "0":
        pytest.skip("a set-uid program gains nothing here: no `id`, or a file system mounted nosuid")
    assert _result(Job(name, off=_all_but("no_new_privs"), as_user=True)).how == str(attempts.AS_USER)


@pytest.mark.parametrize(
    ("layer", "name", "how"),
    [
        ("empty_root", "open", "ENOENT"),
        ("empty_root", "stat", "ENOENT"),
        ("empty_root", "execve", "ENOENT"),
        ("namespaces", "connect over TCP", "ENETUNREACH"),
        ("namespaces", "connect to an abstract Unix socket", "ECONNREFUSED"),
    ],
)
def test_layer_of_the_fleet_alone(layer: str, name: str, how: str) -> None:
    ended = _result(Job(name, off=OWN_LAYERS, fleet=(layer,)))
    if "unavailable" in ended.told:
        pytest.skip(f"not here: {ended.told['unavailable']}")
    assert ended.how == how


def test_every_layer_of_a_worker_is_tried_alone() -> None:
    assert tuple(name for name, _ in OWN) == OWN_LAYERS
    by_themselves = {alone.layer for alone in ALONE} | {"seccomp", "mdwe", "privileges", "no_new_privs"}
    assert by_themselves == set(OWN_LAYERS)
