"""Agents that are documents in ChatMD: read when they are loaded, shown as prompts, and run as tools."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio
from pydantic import ValidationError

from agents.agent import AgentArgument, AgentInfo, Call, Resolved
from agents.chatmd.diagnostics import Diagnostic
from agents.chatmd.files import MAX_VALUES, Sizes
from agents.chatmd.history import given
from agents.chatmd.opening import Opening
from agents.chatmd.packed import read_packed
from agents.chatmd.program import Program, Unavailable
from agents.chatmd.web import open_hosts
from agents.code.chatmd_prompt import images_of, left_out, prompt_of
from agents.code.entries import Loading, NotLoaded, Place
from agents.code.kind import Kind, Packages
from agents.code.making import Made, Making
from agents.code.pages import open_pages
from agents.package import Package
from agents.registry import Registry
from agents.shapes.schema import parameters_schema, returns_schema
from agents.shapes.shape import narrowed
from agents.tool import ToolInfo
from agents.toolbox.servers import Servers
from agents.tools.chatmd import ChatmdTool, tool_of
from engine.config import ChatmdEntry
from engine.config.signatures import Files, signature
from engine.egress.rules import parse_rules, parse_url, refusal
from engine.errors import Code, Problem
from engine.models.calling import GrantedModels
from engine.tenant import DEFAULT_TENANT, Tenant
from engine.work import WORK

# What is said of a document that has more than this.
_MOST_WARNINGS = 10
_INPUT = AgentArgument(name="input", description="The message of the user")


@dataclass(frozen=True, slots=True)
class ChatmdAgent:
    """A document, as its entry has it. `read` are the files that it was made of, as they were."""

    info: AgentInfo
    program: Program
    entry: ChatmdEntry
    read: Files = field(repr=False, compare=False)
    registry: Registry = field(repr=False, compare=False)
    servers: Servers = field(repr=False, compare=False)
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)
    parameters: Mapping[str, Any] | None = None
    images: Mapping[bytes, str] = field(default_factory=dict, repr=False)

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """Its messages, with what is given in them. Raises Problem bad_request."""
        values = {name: value for name, value in arguments.items() if value is not None}
        if self.parameters is None:
            if not isinstance(values.get("input", ""), str):
                raise Problem(Code.BAD_REQUEST, "input must be a text")
        elif self.parameters.get("additionalProperties") is False:
            known = self.parameters.get("properties", {})
            if (unknown := next((name for name in values if name not in known), None)) is not None:
                raise Problem(Code.BAD_REQUEST, f"unknown argument: {unknown[:64]}; known: {', '.join(known)}")
        program, last = given(self.program, values, named=self.parameters is not None)
        about = self.source(call.tenant)
        gone = {each["name"] for each in about["unavailable"]}
        tools = tuple(name for name in self.info.tools if name not in gone)
        resolved = prompt_of(program, last, tools, self.images)
        return Resolved(resolved.prompt, None, resolved.blocks, {"engine/chatmd": about})

    def source(self, tenant: Tenant) -> dict[str, Any]:
        """The document itself, and what of it has no effect: as prompts and `GET /agents/NAME/source` have it."""
        return {
            "source": self.program.source,
            "sha256": self.program.sha256,
            "imports": list(self.program.imports),
            "unavailable": [{"name": each.name, "reason": each.reason} for each in self.unavailable(tenant)],
            "left_out": left_out(self.program)._asdict(),
        }

    def unavailable(self, tenant: Tenant) -> list[Unavailable]:
        """The tools that it declares and cannot use, and what else it does not get, with the reasons."""
        found = [*self.program.unavailable, *self.program.ignored]
        for name in _declared(self.program):
            if name not in self.info.tools:
                found.append(Unavailable(name, "`tools` of its entry leaves it out"))
        return found + self.missing(tenant.id, tenant.key)

    def missing(self, tenant: str, key: str | None = None) -> list[Unavailable]:
        """The tools that it declares and may use, but that the tenant does not have now."""
        found = [
            Unavailable(name, "there is no tool of this name")
            for name in _declared(self.program)
            if name in self.info.tools and self.registry.tool(tenant, name, key) is None
        ]
        return found + self.servers.unknown((tool for tool in self.program.tools if tool.kind == "mcp"), tenant)


async def _load(place: Place, entry: ChatmdEntry, loading: Loading) -> ChatmdAgent:
    loading.note_lowered(place, entry)
    before = loading.agent_before(place, entry)
    if isinstance(before, ChatmdAgent) and before.entry == entry and await loading.unchanged(before.read):
        loading.required |= before.read
        agent = before
    else:
        agent = await _read(place, entry, loading)
    loading.warnings += [f"{place.key}: {warning}" for warning in agent.warnings[:_MOST_WARNINGS]]
    if (more := len(agent.warnings) - _MOST_WARNINGS) > 0:
        loading.warnings.append(f"{place.key}: {more} more warnings; `engine chatmd check` shows them")
    loading.note_beyond(place, _declared(agent.program), entry.tools)
    return agent


async def _read(place: Place, entry: ChatmdEntry, loading: Loading) -> ChatmdAgent:
    parameters = None if entry.parameters is None else parameters_schema(entry.parameters, "parameters")
    returns_schema(entry.returns)
    read: Files = {}
    try:
        program, warnings = await _program(entry, loading, read)
    finally:
        loading.required |= read
    info = AgentInfo(
        name=place.name,
        description=program.description,
        tools=narrowed(_declared(program), entry.tools),
        source="chatmd",
        arguments=_arguments(parameters),
        title=entry.title,
        expose=entry.expose,
    )
    images = await trio.to_thread.run_sync(images_of, program)
    return ChatmdAgent(
        info, program, entry, read, loading.live, loading.means.servers, warnings, parameters, images,
    )  # fmt: skip


def _declared(program: Program) -> tuple[str, ...]:
    """The tools of the tenant that a document declares."""
    return tuple(tool.name for tool in program.tools if tool.kind == "tenant")


async def _program(entry: ChatmdEntry, loading: Loading, read: Files) -> tuple[Program, tuple[str, ...]]:
    """The document, read; `read` gets its files. Raises NotLoaded."""
    bound = loading.engine.limits_for(entry.limits, DEFAULT_TENANT)
    sizes = Sizes(int(bound["source_bytes"]), int(bound["fs_bytes"]), MAX_VALUES)

    def seen(path: Path) -> None:
        read.setdefault(path, signature(path))

    async with loading.reading, open_hosts(entry.allow_hosts) as hosts, open_pages(loading.engine.config) as pages:
        opening = Opening(
            entry.path, sizes, hosts, pages, roots=entry.roots, strict=entry.strict, description=entry.description,
            shown=_shown(entry.path, loading.folder), seen=seen,
        )  # fmt: skip
        try:
            reading = await opening.read()
        except OSError as error:
            raise NotLoaded(f"file-missing: cannot read the document: {error.strerror}") from None
    if reading.errors or reading.built is None:
        raise _not_loaded(reading.errors, opening.shown)
    return reading.built.program, reading.warnings


def _shown(path: Path, folder: Path) -> str:
    return os.path.relpath(path, folder) if path.is_relative_to(folder) else str(path)


def _not_loaded(errors: tuple[Diagnostic, ...], shown: str) -> NotLoaded:
    first = errors[0]
    at = f"{first.at.file}:{first.at.line}:{first.at.column}"
    more = f" (and {len(errors) - 1} more; `engine chatmd check` shows them)" if len(errors) > 1 else ""
    # The line is the document's own: of another file it would be taken for one of this.
    line = first.at.line if first.at.file == shown else None
    return NotLoaded(f"{first.code}: {at}: {first.message}{more}", line=line)


def _arguments(parameters: Mapping[str, Any] | None) -> tuple[AgentArgument, ...]:
    """The arguments of the prompt. None is required: a prompt is also for reading."""
    if parameters is None:
        return (_INPUT,)
    return tuple(
        AgentArgument(name=name, description=_description(schema))
        for name, schema in parameters.get("properties", {}).items()
    )


def _description(schema: object) -> str:
    found = schema.get("description") if isinstance(schema, Mapping) else None
    return found if isinstance(found, str) else ""


# ---- published --------------------------------------------------------------------------------------------------

# Keys of an entry that a manifest may have in `config`; all others are grants, or the operator's.
_PACKAGED = ("description", "title", "model", "parameters", "returns", "confirm", "strict")
# Of a published document, which a tenant may make as it likes: 50,000 messages keep the event loop for 0.7 s with each
# prompt. Messages as in an answer of a script.
_PACKED_VALUES = WORK["published document"].max_values or 0
_PACKED_MESSAGES = 1_024
# Where a package is that has one file, which nothing reads from the disk.
_NOWHERE = Path("/package")
_NO_SERVERS = "a published document has no MCP servers"  # they are the operator's, with the operator's keys
_NO_FOLDER = "a package of one file has no folder to read"


def _make(package: Package, said: object, making: Making) -> Made[ChatmdAgent]:
    """The agent of a package: it and its tool. Takes time in proportion to the package: in a thread."""
    folder = making.folder or _NOWHERE
    bound = making.engine.limits_for(dict(package.grants.limits), DEFAULT_TENANT)
    sizes = Sizes(int(bound["source_bytes"]), int(bound["fs_bytes"]), _PACKED_VALUES)
    entry = _entry(package, folder)
    parameters = None if entry.parameters is None else parameters_schema(
        entry.parameters, "config.parameters", compiles=making.compiles
    )  # fmt: skip
    returns_schema(entry.returns, compiles=making.compiles)
    files = {folder / path: text.encode() for path, text in package.files.items()}
    rules = parse_rules(package.grants.hosts)

    def refusal_of(url: str) -> str | None:
        try:
            return refusal(rules, parse_url(url))
        except ValueError as error:
            return f"no address: {error}"

    reading = read_packed(
        files, entry.path, folder, sizes, refusal_of, strict=entry.strict, description=entry.description
    )  # fmt: skip
    if reading.errors or reading.built is None:
        first = reading.errors[0]
        more = f" (and {len(reading.errors) - 1} more)" if len(reading.errors) > 1 else ""
        at = f"{first.at.file}:{first.at.line}:{first.at.column}"
        raise Problem(Code.BAD_REQUEST, f"the document does not load: {first.code}: {at}: {first.message}{more}")
    gone = {"mcp": _NO_SERVERS} | ({"file": _NO_FOLDER} if making.folder is None else {})
    program = _without(gone, reading.built.program)
    _check_messages(program)
    allowed, left_out = making.allowed(package, [*dict.fromkeys(_declared_in(program))])
    entry = entry.model_copy(update={"tools": allowed})
    info = AgentInfo(
        name=package.name,
        description=program.description,
        tools=narrowed(_declared(program), allowed),
        source="chatmd",
        arguments=_arguments(parameters) if package.arguments is None else package.arguments,
        title=entry.title,
        expose=entry.expose,
    )
    warnings = (*reading.warnings[:_MOST_WARNINGS], *left_out)
    agent = ChatmdAgent(
        info, program, entry, {}, making.registry, making.means.servers, warnings, parameters, images_of(program),
    )  # fmt: skip
    models = GrantedModels(making.means.models, package.grants.models)

    def known(name: str) -> ToolInfo | None:
        offered = making.registry.tool(making.tenant, name)
        return None if offered is None else offered.tool.info

    tool = ChatmdTool.from_agent(
        agent, entry, making.engine, replace(making.means, models=models), making.registry,
        tenants=(making.tenant,), known=known, label=f"{package.name}@{package.version}",
    )  # fmt: skip
    return Made(agent, warnings, making.folder, tool)


def _entry(package: Package, folder: Path) -> ChatmdEntry:
    """The entry that a package stands for. Raises Problem (400)."""
    if unknown := next((key for key in package.config if key not in _PACKAGED), None):
        known = ", ".join(_PACKAGED)
        raise Problem(Code.BAD_REQUEST, f"config: a document has no key {unknown[:64]!r}; known: {known}")
    limits = dict(package.grants.limits)
    try:
        return ChatmdEntry.model_validate({**package.config, "path": folder / package.main, "limits": limits})
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, error["loc"]))[:128]
        raise Problem(Code.BAD_REQUEST, f"config: {where}: {error['msg'][:1].lower()}{error['msg'][1:]}") from None


def _without(gone: Mapping[str, str], program: Program) -> Program:
    """The program without the tools of these kinds, which are told with the reason of their kind."""
    tools = tuple(tool for tool in program.tools if tool.kind not in gone)
    told = tuple(Unavailable(tool.name or tool.url, gone[tool.kind]) for tool in program.tools if tool.kind in gone)
    inside = {key: _without(gone, each) for key, each in program.documents.items()}
    return replace(program, tools=tools, unavailable=(*program.unavailable, *told), documents=inside)


def _check_messages(program: Program) -> None:
    """Raises Problem for a document with more messages than the event loop renders at once."""
    if len(program.items) > _PACKED_MESSAGES:
        raise Problem(
            Code.BAD_REQUEST, f"the document does not load: too-large: it has more than {_PACKED_MESSAGES:,} messages"
        )
    for inside in program.documents.values():
        _check_messages(inside)


def _declared_in(program: Program) -> Iterator[str]:
    """The tenant's tools that a document and those inside it declare."""
    yield from _declared(program)
    for inside in program.documents.values():
        yield from _declared_in(inside)


KIND = Kind(
    table="chatmd", load=_load, watched=lambda entry: (entry.path,), tool=tool_of,
    packages=Packages("chatmd", None, _make, slow=True),
)  # fmt: skip
