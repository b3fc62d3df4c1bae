"""`engine model`: list and test the configured models; serve a scripted one."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import trio
from cyclopts import App, Parameter

from cli.control import tenant_of
from cli.options import AsJson, ConfigPath, TenantName, load, shown
from cli.output import (
    OK,
    UNUSABLE,
    Exit,
    exit_code_of,
    note,
    one_line,
    plural,
    quiet_logs,
    say,
    say_json,
    table,
)
from engine.config import LoadedConfig, ModelEntry, parse_bind
from engine.egress.secrets import NoSecrets, SecretSource
from engine.errors import Problem

app = App(name="model", help="List and test models, and serve a scripted one.")

_QUESTION = "Answer with one short sentence: are you there?"
# Enough for a short answer of a model that thinks first.
_TOKENS = 1024


@app.command(name="list")
async def list_models(*, config: ConfigPath = None, as_json: AsJson = False, tenant: TenantName = "default") -> None:
    """List the models of a tenant."""
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    models = loaded.config.models
    chosen = models.default_of(who.id)
    rows = [
        {
            "name": name,
            "api": entry.api,
            "model": entry.model,
            "at": _place(loaded, entry),
            "key": f"secret:{entry.secret}" if entry.secret else "set" if entry.key else None,
            "default": name == chosen,
            "max_output_tokens": entry.max_output_tokens,
            "context_tokens": entry.context_tokens,
            "price": None if entry.price is None else entry.price.model_dump(),
        }
        for name, entry in models.of(who.id).items()
    ]
    if as_json:
        say_json({"models": rows})
        return
    if not rows:
        say("No models.")
        return
    table(
        (
            (
                f"{row['name']}{' (default)' if row['default'] else ''}",
                row["api"],
                row["model"] or "",
                row["key"] or "none",
                one_line(row["at"]),
            )
            for row in rows
        ),
        heading=("MODEL", "API", "ITS NAME THERE", "KEY", "AT"),
        indent="",
    )


def _place(loaded: LoadedConfig, entry: ModelEntry) -> str:
    if entry.path is not None:
        return shown(entry.path, loaded.root)
    if entry.api == "client":
        return "the client that calls"
    from engine.models import anthropic, openai

    return entry.url or (anthropic.DEFAULT_URL if entry.api == "anthropic" else openai.DEFAULT_URL)


@app.command(name="test")
async def try_out(
    name: str,
    /,
    *,
    prompt: Annotated[str, Parameter(help="What to ask.", negative=())] = _QUESTION,
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> int:
    """Ask a model one question, and show its answer, tokens and cost."""
    from engine.models.calling import open_models
    from engine.models.shapes import Request, Text, User, collected

    quiet_logs()
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    request = Request([User((Text(prompt),))], max_output_tokens=_TOKENS)
    result: dict[str, Any] = {"name": name}
    async with _secrets(loaded, name) as secrets, open_models(loaded.config, secrets) as models:
        try:
            model = models.model(name, who.id)
        except Problem as problem:
            raise Exit(UNUSABLE, problem.message) from None
        began = trio.current_time()
        try:
            async with model.ask(request) as events:
                answer = collected([event async for event in events])
        except Problem as problem:
            if as_json:
                say_json(result | {"ok": False, "error": problem.envelope()["error"]})
            else:
                note(f"error: {one_line(problem.message)}")
            return exit_code_of(problem)
        seconds = round(trio.current_time() - began, 3)
    usage = answer.usage
    cost = None if model.price is None else model.price.cost(usage)
    if as_json:
        say_json(
            result
            | {
                "ok": True, "answer": answer.text, "stopped": answer.reason, "seconds": seconds,
                "input_tokens": usage.input, "cached_tokens": usage.cached, "output_tokens": usage.output,
                "estimated": usage.estimated, "cost_usd": None if cost is None else cost / 1_000_000,
            }
        )  # fmt: skip
        return OK
    say(answer.text or "(an empty answer)")
    tokens = f"{plural(usage.input, 'input token')} ({usage.cached:,} cached), {plural(usage.output, 'output token')}"
    counted = ", counted from bytes, as the server reports none" if usage.estimated else ""
    money = "" if cost is None else f", {cost / 1_000_000:.6f} USD"
    say(f"{name}: answered in {seconds:.1f} s; {tokens}{counted}{money}")
    if answer.reason == "length":
        note(f"warning: the answer was cut at {min(_TOKENS, model.max_output_tokens)} tokens")
    return OK


@asynccontextmanager
async def _secrets(loaded: LoadedConfig, name: str) -> AsyncIterator[SecretSource]:
    """The tenants' secrets, if this model needs one."""
    entry = loaded.config.models.entries.get(name)
    if entry is None or entry.secret is None:
        yield NoSecrets()
        return
    from control.store import open_configured
    from control.vaults import Vaults

    async with open_configured(loaded.config) as control:
        yield Vaults(control)


@app.command(name="stub")
async def stub(
    script: Path,
    /,
    *,
    bind: Annotated[str, Parameter(help="Listen here: HOST:PORT; port 0 takes any free one.", negative=())] = (
        "127.0.0.1:7332"
    ),
) -> int:
    """Serve a scripted model that speaks both wires, for tests, until SIGTERM or Ctrl-C."""
    from engine.models.script import read_script
    from engine.models.stub import Stub, serve_stub

    try:
        host, port = parse_bind(bind)
    except ValueError as error:
        raise Exit(UNUSABLE, f"--bind: {error}") from None
    try:
        replies = read_script(script)
    except ValueError as error:
        raise Exit(UNUSABLE, f"{script}: {error}") from None
    served = Stub(replies, heard=_line)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            try:
                port = await nursery.start(partial(serve_stub, served, host, port))
            except OSError as error:
                raise Exit(UNUSABLE, f"cannot listen at {bind}: {error.strerror}") from None
            where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            _line(f"Serving {plural(len(replies), 'reply', 'replies')} at {where}")
            _line(f"  openai     {where}/v1")
            _line(f"  anthropic  {where}")
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    return OK


def _line(text: str) -> None:
    """A line for whom reads along, who may be a program."""
    import sys

    say(text)
    sys.stdout.flush()
