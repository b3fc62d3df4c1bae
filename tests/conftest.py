"""What all tests share."""

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import structlog

# No deadline: a loaded machine is slow, not wrong. The same examples every time, so that a failure is everybody's;
# HYPOTHESIS_PROFILE=explore looks further.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def _configure_without_caches(*args: Any, **how: Any) -> None:
    """A logger that is cached keeps the configuration of the test that used it first: later ones would not hear it."""
    _configure(*args, **{**how, "cache_logger_on_first_use": False})


_configure, structlog.configure = structlog.configure, _configure_without_caches


@pytest.fixture(autouse=True)
def _logging_is_as_it_was() -> Iterator[None]:
    """Commands that run in this process set logging up for good; the next test finds it as if none had."""
    configured = structlog.is_configured()
    yield
    if structlog.is_configured() and not configured:
        structlog.reset_defaults()
