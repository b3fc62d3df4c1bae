"""Inline agents: a fixed text in the configuration (`[agents.NAME]`), or published as a file of TOML."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from agents.agent import Agent, AgentInfo, AgentPrompt, Call, Resolved
from agents.code.entries import Loading, Place
from agents.code.kind import Kind, Packages
from agents.code.making import Made, Making
from agents.package import Package
from agents.persona import Captured
from agents.shapes.shape import MAX_DESCRIPTION_BYTES, MAX_ITEMS
from engine.config import InlineAgent
from engine.errors import Code, Problem

# Bounds of a `toml` package. The parser is Python and takes 0.2 us a character, and more for dotted names: their time
# grows with the square of their parts, 8.5 s for 200 KB. Three keys need few characters beside their texts.
MAX_TOML_BYTES = 256 * 1024
_MAX_TOML_STRUCTURE = 16 * 1024
_MAX_TOML_DOTS = 64
# Each escape in a text takes the parser a microsecond or two, and 80 bytes while it runs.
_MAX_TOML_ESCAPES = 4 * 1024
# Texts and comments, as TOML 1.0 reads them from left to right. A text that is not closed goes to the end of its line
# or of the file: if it were skipped, each quotation mark in it would be tried as the beginning of another text.
_TOML_TEXTS = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*(?:"{3,5})?|'{3}(?:[^']|'{1,2}(?!'))*(?:'{3,5})?'''
    r"""|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|#[^\n]*""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TomlAgent:
    """Resolves to its text, whatever the arguments."""

    info: AgentInfo
    _prompt: AgentPrompt

    @classmethod
    def from_entry(cls, name: str, entry: InlineAgent) -> "TomlAgent":
        info = AgentInfo(
            name=name, description=entry.description, tools=entry.tools, source="toml", expose=entry.expose
        )
        return cls(info, AgentPrompt(system=entry.system_prompt, tools=entry.tools))

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        return Resolved(self._prompt)

    def captured(self) -> Captured:
        """Its system text, for a model or a client."""
        return Captured("model", self._prompt.system, self.info.tools)


async def _load(place: Place, entry: InlineAgent, loading: Loading) -> Agent:
    return TomlAgent.from_entry(place.name, entry)


def _make(package: Package, said: object, making: Making) -> Made[Agent]:
    entry = inline_agent(package)
    allowed, warnings = making.allowed(package, entry.tools)
    agent = TomlAgent.from_entry(package.name, entry.model_copy(update={"tools": allowed}))
    if package.arguments is not None:
        agent = replace(agent, info=agent.info.model_copy(update={"arguments": package.arguments}))
    return Made(agent, warnings)


def _check_toml(path: str, source: str) -> None:
    """Raises Problem for a file that the parser would take long for."""
    if len(source.encode()) > MAX_TOML_BYTES:
        raise Problem(Code.TOO_LARGE, f"{path} is larger than {MAX_TOML_BYTES} bytes, the most for an agent in TOML")
    if (escapes := source.count("\\")) > _MAX_TOML_ESCAPES:
        raise _wrong(f"{path}: has {escapes} backslashes; the most is {_MAX_TOML_ESCAPES}")
    structure = _TOML_TEXTS.sub("", source)
    if len(structure) > _MAX_TOML_STRUCTURE or structure.count(".") > _MAX_TOML_DOTS:
        raise _wrong(
            f"{path}: outside its texts it has {len(structure)} characters and {structure.count('.')} dots; the most "
            f"is {_MAX_TOML_STRUCTURE} and {_MAX_TOML_DOTS}"
        )


def inline_agent(package: Package) -> InlineAgent:
    """The agent in a `toml` package: `description`, `system_prompt` and `tools`, as in `[agents.NAME]`.

    They are at the top of the file or in one table of that name. `${VAR}` is not expanded. Raises Problem (400).
    """
    _check_toml(package.main, package.files[package.main])
    try:
        said = tomllib.loads(package.files[package.main])
    except tomllib.TOMLDecodeError as wrong:
        raise _wrong(f"{package.main}: not valid TOML: {wrong}") from None
    except RecursionError:
        raise _wrong(f"{package.main}: not valid TOML: nested too deeply") from None
    except ValueError:  # from Python's int(), which the parser does not catch
        raise _wrong(f"{package.main}: not valid TOML: a number has too many digits") from None
    if set(said) == {"agents"} and isinstance(said["agents"], dict) and set(said["agents"]) == {package.name}:
        said = said["agents"][package.name]
    known = ("description", "system_prompt", "tools")
    if unknown := next((key for key in said if key not in known), None):
        raise _wrong(f"{package.main}: unknown key {unknown[:64]!r}; known: {', '.join(known)}")
    if isinstance(tools := said.get("tools"), list) and len(tools) > MAX_ITEMS["tools"]:
        raise _wrong(f"{package.main}: tools has {len(tools)} items; the most is {MAX_ITEMS['tools']}")
    description = said.get("description")
    if isinstance(description, str) and len(description.encode()) > MAX_DESCRIPTION_BYTES:
        raise _wrong(f"{package.main}: description is longer than {MAX_DESCRIPTION_BYTES} bytes")
    try:
        return InlineAgent.model_validate(said)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, error["loc"]))
        raise _wrong(f"{package.main}: {where}: {error['msg'][:1].lower()}{error['msg'][1:]}") from None


def _wrong(message: str) -> Problem:
    return Problem(Code.BAD_REQUEST, message)


KIND = Kind(table="inline", load=_load, harmless=lambda entry, agent: True, packages=Packages("toml", None, _make))
