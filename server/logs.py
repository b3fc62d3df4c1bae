"""Logging: one chain of processors for our own events and for those of libraries, to standard error.

`ENGINE_LOG` sets the level (`debug`, `info`, `warning`, `error`), `ENGINE_LOG_FORMAT` the form (`json`, `console`);
without it a terminal gets the console form and everything else JSON lines.
"""

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import orjson
import structlog

Processor = Callable[[Any, str, MutableMapping[str, Any]], Any]

# The processors of every event, ours or a library's. One that hides secrets belongs at the end, before rendering.
SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)

# Libraries that log every request, or clients' errors, at a level that we use for rare events.
_QUIET = {
    "mcp": logging.WARNING,
    "hypercorn.error": logging.WARNING,
    "httpx2": logging.WARNING,
    "sse_starlette": logging.WARNING,
}

log = structlog.get_logger("server")


def _json(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def configure(environ: Mapping[str, str] = os.environ) -> None:
    """Set up structlog and the standard library's logging. To be called before the first event; idempotent."""
    level = logging.getLevelNamesMapping().get(environ.get("ENGINE_LOG", "info").upper(), logging.INFO)
    form = environ.get("ENGINE_LOG_FORMAT") or ("console" if sys.stderr.isatty() else "json")
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if form == "console"
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    structlog.configure(
        processors=[*SHARED, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.INFO))
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(max(level, quiet))


@contextmanager
def handed_on() -> Iterator[None]:
    """Route our events to the standard library's logging, which a program that embeds the engine configures.

    Does nothing if the program has configured structlog itself.
    """
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def report(error: BaseException, where: str) -> str:
    """Log a fault of ours with its traceback. Returns the reference that the error to the caller quotes."""
    reference = secrets.token_hex(6)
    log.error("internal error", reference=reference, where=where, exc_info=error)
    return reference
