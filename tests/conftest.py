"""What all tests share."""

import gc
import os
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpcore2
import hypothesis
import pytest
import structlog
import warm_start
import warm_zygote

# Hundreds of processes of this program start here, and each would compile every module anew: 0.4 s of CPU a command.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the tests in the background ignores SIGINT and SIGQUIT for them, `nohup` SIGHUP, and every process
# that they start inherits that: one that a test interrupts would go on for ever.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):  # fmt: skip
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# No deadline: a loaded machine is slow, not wrong. The same examples every time, so that a failure repeats: few of them
# in `make quick`, `same` in `make test`, `thorough` in CI; `make fuzz` and HYPOTHESIS_PROFILE=explore try others.
for name, examples in (("few", 10), ("same", 40), ("thorough", 100)):
    hypothesis.settings.register_profile(name, deadline=None, derandomize=True, database=None, max_examples=examples)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Here and in every process that a test starts, `[embedding] provider = "auto"` is the static model, as on a machine
# without the extra `embedding`: the sentence model takes a second to start, and 0.1 s for each passage.
STATIC_ONLY = str(Path(__file__).parent / "static_only")
if STATIC_ONLY not in sys.path:
    sys.path.insert(0, STATIC_ONLY)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STATIC_ONLY, os.environ.get("PYTHONPATH"))))

# How often CI runs a test again that is marked `rerun(reason=...)` and fails: `.ci/run` sets it. No other test is.
RERUNS = int(os.environ.get("ENGINE_TEST_RERUNS", "0"))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Binary data is numbered in a test's name: a name made of it would change with every clock reading in a header."""
    return argname if isinstance(val, bytes) and not (val.isascii() and val.decode("ascii").isprintable()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if RERUNS and item.get_closest_marker("rerun") is not None:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports and collected tests stay: looking for garbage among them takes a quarter of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests and their modules stay until the end: no later collection looks at them again."""
    gc.collect()
    gc.freeze()


def _configure_without_caches(*args: Any, **how: Any) -> None:
    """A logger that is cached keeps the configuration of the test that used it first: later ones would not hear it."""
    _configure(*args, **{**how, "cache_logger_on_first_use": False})


_configure, structlog.configure = structlog.configure, _configure_without_caches


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`: a quarter of a test's time it waits for timers, disks and other processes."""
    return -(-len(os.sched_getaffinity(0)) * 3 // 2)


@cache
def _trusting(trust_env: bool, *_: str | None) -> ssl.SSLContext:
    return _default_ssl_context(_trust_env=trust_env)


def _ssl_context(*, _trust_env: bool = True) -> ssl.SSLContext:
    """Each HTTP client of a test would read the machine's certificates anew: 50 ms of CPU, for thousands of them."""
    return _trusting(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


_default_ssl_context, httpcore2.default_ssl_context = httpcore2.default_ssl_context, _ssl_context


@pytest.fixture(scope="session", autouse=True)
def _warm_zygotes() -> None:
    warm_zygote.ready()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    warm_zygote.allowed = item.get_closest_marker("cold") is None


@pytest.fixture(scope="session")
def warm() -> None:
    """Where tests look for processes and descriptors that are left: what stays of `warm_start` is there before."""
    warm_start.ready()


@pytest.fixture
def sentence_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra `embedding`, as `make setup` installs it."""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != STATIC_ONLY])
    others = os.environ["PYTHONPATH"].split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(each for each in others if each != STATIC_ONLY))


@pytest.fixture(autouse=True)
def _logging_is_as_it_was() -> Iterator[None]:
    """Commands that run in this process set logging up for good; the next test finds it as if none had."""
    configured = structlog.is_configured()
    yield
    if structlog.is_configured() and not configured:
        structlog.reset_defaults()
