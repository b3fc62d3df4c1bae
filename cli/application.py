"""The command line: one program, one exit code, and one clear line on standard error for an error."""

import errno
import os
import resource
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from cyclopts import App, CycloptsError

from cli.output import INTERRUPTED, OK, UNUSABLE, Exit, exit_code_of, note, one_line
from cli.streams import OutputFailed

Shell = Literal["bash", "zsh", "fish", "powershell"]

HELP = "Runs other people's Lua agents safely and serves them over REST and MCP."

EXIT_CODES = """\
Exit codes: 0 fine; 1 the script, agent, search target or threshold failed, or a bad --arg or --param; 2 misuse, an
unknown name, the configuration, or a failure of the engine; 130 interrupted by Ctrl-C."""


# Every command: its location, and its line in the help. A command's module is imported when it is called; the help of
# the program imports none. A test compares the lines with the commands' docstrings.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve:serve", "Serve agents, tools and knowledge over REST and MCP until SIGTERM or Ctrl-C."),
    "demo": (
        "demo:demo",
        "Write the demo to a folder (engine-demo), fill its store, and serve it. What exists is left as it is.",
    ),
    "init": ("init:init", "Write a commented engine.toml and an empty store. What exists is left as it is."),
    "doctor": (
        "doctor:doctor",
        "Check the configuration, store, embedder, extractor, scripts and sandbox layers.\n\n"
        "Exit code 1 when a script did not load or an issuer's keys cannot be fetched; 2 when a required layer is "
        "missing, or the configuration or store cannot be used.",
    ),
    "agent": ("agent:app", "List, test, develop and create agents."),
    "tool": ("tool:app", "List, test, develop and create tools."),
    "chatmd": ("chatmd.command:app", "Check, format and parse documents in ChatMD."),
    "connector": ("knowledge.connector:app", "List, test and create connectors."),
    "model": ("models.model:app", "List and test models, and serve a scripted one."),
    "test": (
        "test:run_tests",
        "Run the tests of scripts: files *_test.lua, each test in a fresh state of a confined worker.",
    ),
    "tenant": ("tenant:app", "Create, suspend, move and delete tenants; show their usage."),
    "key": ("key:app", "Create, list and revoke API keys."),
    "secret": ("secret:app", "Set, list and delete secrets of tenants."),
    "kv": ("kv:app", "List, print, set and delete the keys that scripts keep."),
    "audit": ("audit:audit", "Print control actions and denied host calls, oldest first."),
    "bench": ("bench:app", "Measure the load that the engine sustains, and its latency."),
    "embed": ("sync:embed_app", "Make the vectors that search by meaning compares."),
    "sync": ("sync:sync", "Synchronise the store with its sources."),
    "search": ("store:search", "Search the knowledge base."),
    "eval": ("knowledge.evaluate:evaluate", "Measure how well searches answer questions with known answers."),
    "get": ("store:get", "Print one document."),
    "sources": ("store:sources", "List the sources, configured or with documents."),
    "stats": ("store:stats", "Print the size of the store."),
    "export": ("store:export", "Print every document and chunk as JSON."),
    "mcp-config": ("mcp_config:mcp_config", "Print the configuration of an MCP client for this engine."),
}


# Commands of ctx that do not exist here, each with its replacement.
OF_CTX: dict[str, str] = {
    "registry": "packages are published with `engine agent publish` and `engine tool publish`",
    "vector-index": "the index of vectors is made and renewed by itself",
}


def build() -> App:
    """The application with all its commands."""
    app = App(
        name="engine",
        help=HELP,
        help_epilogue=EXIT_CODES,
        version=lambda: version("engine"),
        backend="trio",
        suppress_keyboard_interrupt=False,
    )
    for name, (where, text) in COMMANDS.items():
        app.command(f"cli.commands.{where}", name=name, help=text)

    @app.command
    def completions(shell: Shell, /) -> None:
        """Print a completion script for a shell: `source <(engine completions bash)`."""
        print(app.generate_completion(shell=shell))

    return app


def _reordered(arguments: Sequence[str]) -> list[str]:
    """Move a leading `--config PATH` behind the command, which accepts it: `engine --config x.toml stats`."""
    rest = list(arguments)
    moved: list[str] = []
    while rest and (rest[0] == "--config" or rest[0].startswith("--config=")):
        count = 2 if rest[0] == "--config" else 1
        moved, rest = moved + rest[:count], rest[count:]
    end = rest.index("--") if "--" in rest else len(rest)
    return rest[:end] + moved + rest[end:]


def _refuse_what_is_of_ctx(arguments: Sequence[str]) -> None:
    """Raises Exit for a command of ctx that does not exist here."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if (instead := OF_CTX.get(command)) is not None:
        raise Exit(UNUSABLE, f"{command!r} is a command of ctx, not supported here: {instead}")


def _leaf(error: BaseException) -> BaseException:
    """The first error inside groups: nurseries wrap every exception that leaves them."""
    while isinstance(error, BaseExceptionGroup):
        interrupts = error.subgroup(KeyboardInterrupt)
        error = (interrupts or error).exceptions[0]
    return error


def _told(error: BaseException) -> tuple[int, str | None]:
    """The exit code for an error, and the line about it, or None for no line."""
    match error:
        case Exit():
            return error.code, error.message
        case KeyboardInterrupt():
            return INTERRUPTED, None
        case OutputFailed():
            return (OK, None) if error.unread else (UNUSABLE, f"standard output: {error.strerror}")
        case CycloptsError():
            return UNUSABLE, str(error)
        case OSError():
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            return UNUSABLE, said + (_tight() if error.errno in _OUT_OF_ROOM else "")
    # Compared by name, without importing: most commands need none of these modules, and then they are not loaded.
    if _is_a(error, "engine.errors", "Problem"):
        return exit_code_of(error), str(error)
    for module, name in (
        ("engine.config", "ConfigError"),
        ("knowledge.store", "StoreError"),
        ("knowledge.store", "EmbeddingsDisabled"),
        ("engine.engine", "SandboxUnavailable"),
    ):
        if _is_a(error, module, name):
            said = str(error)
            return UNUSABLE, said if "ulimit" in said else said + _tight()
    return UNUSABLE, f"internal error: {type(error).__name__}: {error} (ENGINE_DEBUG=1 shows where){_tight()}"


# The kernel's errors at a limit of the process.
_OUT_OF_ROOM = (errno.EMFILE, errno.ENOMEM, errno.EAGAIN)
# The least limits to work with: limit, what it counts, least value, unit in messages, how to set it.
_LEAST = (
    (resource.RLIMIT_NOFILE, "open files", 128, 1, "ulimit -n"),
    (resource.RLIMIT_AS, "MiB of address space", 768 << 20, 1 << 20, "ulimit -v"),
    (resource.RLIMIT_NPROC, "processes of this user", 64, 1, "ulimit -u"),
)


# With less address space, the libraries that are written in Rust abort the process where an allocation fails.
_LEAST_TO_LOAD = 100 << 20


def _refuse_what_cannot_load() -> None:
    """Raises Exit where there is too little address space to import what commands need."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < _LEAST_TO_LOAD:
        raise Exit(UNUSABLE, "there is no room to start" + _tight())


def _tight() -> str:
    """The limits of this process that are too low to work with: the errors they cause do not name them."""
    found = []
    for which, counted, least, unit, how in _LEAST:
        soft, _ = resource.getrlimit(which)
        if soft != resource.RLIM_INFINITY and soft < least:
            found.append(f"only {soft // unit} {counted} are allowed, and {least // unit} are the least ({how})")
    return f" ({'; '.join(found)})" if found else ""


def _is_a(error: BaseException, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name, ()))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Raises nothing, unless ENGINE_DEBUG asks for tracebacks."""
    try:
        arguments = _reordered(arguments)
        _refuse_what_is_of_ctx(arguments)
        _refuse_what_cannot_load()
        result = build()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else OK
    except BaseException as error:
        code, message = _told(_leaf(error))
        if message is not None:
            if os.environ.get("ENGINE_DEBUG") and not isinstance(error, Exit | CycloptsError):
                raise
            note(f"error: {one_line(message)}")
        return code
