"""A kind of agent or tool is one file, its model and its field of the configuration: here both are added on the fly."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar

import pytest
from added import added_file, added_table
from agents_support import CALL, Project, problem
from publish_support import PUBLISHER

import agents.kinds
import agents.tools
from agents.service import Service
from engine.config import Agents, Tools
from engine.config.fields import Exposure, FilePath, Model, Strings
from engine.errors import Code
from engine.tenant import DEFAULT_TENANT

Open = Callable[..., AbstractAsyncContextManager[Service]]

RECIPE = """
from dataclasses import dataclass
from agents.agent import AgentInfo, AgentPrompt, Resolved
from agents.code.kind import Kind, Packages
from agents.code.entries import NotLoaded
from agents.code.making import Made


@dataclass(frozen=True)
class Recipe:
    info: AgentInfo
    text: str

    @classmethod
    def of(cls, name, text):
        return cls(AgentInfo(name=name, description=text.splitlines()[0], tools=(), source="recipe"), text)

    async def resolve(self, arguments, call):
        return Resolved(AgentPrompt(system=self.text, tools=()))


async def load(place, entry, loading):
    if not entry.path.exists():
        raise NotLoaded("there is no such recipe")
    return Recipe.of(place.name, entry.path.read_text())


def make(package, said, making):
    return Made(Recipe.of(package.name, package.files[package.main]), ("published as it is",))


KIND = Kind(table="recipe", load=load, watched=lambda entry: (entry.path,), packages=Packages("recipe", None, make))
"""

ECHO = """
from dataclasses import dataclass
from agents.code.kind import Kind, Packages
from agents.code.making import Made
from agents.tool import Called, ToolInfo


@dataclass(frozen=True)
class Echo:
    info: ToolInfo
    word: str

    @classmethod
    def of(cls, name, word):
        info = ToolInfo(name=name, description=word, builtin=False, parameters={"type": "object", "properties": {}})
        return cls(info, word)

    async def execute(self, params, call):
        return Called({self.word: dict(params)})


async def load(place, entry, loading):
    return Echo.of(place.name, entry.word)


def make(package, said, making):
    return Made(Echo.of(package.name, package.source.decode()))


KIND = Kind(table="echo", load=load, packages=Packages("echo", None, make))
"""


class RecipeEntry(Model):
    """`[agents.recipe.NAME]`."""

    path: FilePath
    tenants: Strings | None = None
    expose: Exposure = ("prompt",)


class EchoEntry(Model):
    """`[tools.echo.NAME]`."""

    path: ClassVar[None] = None
    word: str
    tenants: Strings | None = None
    expose: Exposure = ("prompt",)


@pytest.fixture
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("kinds")
    with added_file(agents.kinds, folder, "recipe", RECIPE), added_table(Agents, "recipe", RecipeEntry):
        yield


@pytest.fixture
def echoes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("kinds")
    with added_file(agents.tools, folder, "echo", ECHO), added_table(Tools, "echo", EchoEntry):
        yield


async def said(service: Service, name: str) -> str:
    async with service.published(DEFAULT_TENANT):
        return (await service.resolve(name, {}, CALL)).prompt.system


@pytest.mark.usefixtures("recipes")
async def test_an_agent_of_an_added_kind_is_loaded_listed_called_and_watched(project: Project, opened: Open) -> None:
    (project.folder / "soup.txt").write_text("Soup\nBoil it.")
    project.configure('[agents.recipe.soup]\npath = "soup.txt"\nexpose = ["prompt", "tool"]\n')
    async with opened() as service:
        assert service.failures == ()
        assert await said(service, "soup") == "Soup\nBoil it."
        (info,) = service.list_agents(DEFAULT_TENANT)
        assert (info.name, info.description, info.source) == ("soup", "Soup", "recipe")
        assert (await service.call_tool("soup", {}, CALL)).value["system"] == "Soup\nBoil it."
        assert project.folder / "soup.txt" in service.files


@pytest.mark.usefixtures("recipes")
async def test_an_agent_of_an_added_kind_that_does_not_load_is_reported_with_its_table_and_path(
    project: Project, opened: Open
) -> None:
    project.configure('[agents.recipe.soup]\npath = "soup.txt"\n')
    async with opened() as service:
        (failure,) = service.failures
        assert (failure.kind, failure.name, failure.message) == ("agent.recipe", "soup", "there is no such recipe")
        assert failure.path == project.folder / "soup.txt"


@pytest.mark.usefixtures("recipes")
async def test_a_package_of_an_added_kind_is_published_and_called(project: Project, opened: Open) -> None:
    project.configure("[agents.recipe]\n")
    body = {"version": "1", "kind": "recipe", "main": "bread.txt", "files": {"bread.txt": "Bread\nBake it."}}
    async with opened() as service:
        published = await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "agent", "bread", body)
        assert published.version["warnings"] == ["published as it is"]
        assert await said(service, "bread") == "Bread\nBake it."
    async with opened() as again:
        assert await said(again, "bread") == "Bread\nBake it."


@pytest.mark.usefixtures("echoes")
async def test_a_tool_of_an_added_kind_is_loaded_published_and_called(project: Project, opened: Open) -> None:
    project.configure('[tools.echo.say]\nword = "said"\n')
    body = {"version": "1", "kind": "echo", "main": "word", "files": {"word": "heard"}}
    async with opened() as service:
        assert service.failures == ()
        assert (await service.call_tool("say", {"a": 1}, CALL)).value == {"said": {"a": 1}}
        await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "tool", "hear", body)
        async with service.published(DEFAULT_TENANT):
            assert (await service.call_tool("hear", {}, CALL)).value == {"heard": {}}


async def test_without_its_file_a_kind_with_a_table_is_not_supported(project: Project, opened: Open) -> None:
    project.configure('[agents.recipe.soup]\npath = "soup.txt"\n')
    body = {"version": "1", "kind": "recipe", "main": "a", "files": {"a": "A"}}
    with added_table(Agents, "recipe", RecipeEntry):
        async with opened() as service:
            (failure,) = service.failures
            assert failure.message == "agents of kind 'recipe' are not supported by this version"
            async with problem(Code.BAD_REQUEST, "agents of kind 'recipe' are not supported by this version"):
                await service.publishing.publish(DEFAULT_TENANT, PUBLISHER, "agent", "bread", body)


def test_every_kind_has_its_table_and_no_two_have_one_name() -> None:
    for package, section in ((agents.kinds, Agents), (agents.tools, Tools)):
        found = package.found()
        assert set(found) <= set(section.model_fields)
        files = {path.stem for path in Path(package.__path__[0]).glob("*.py")} - {"__init__", "builtin", "agent"}
        if package is agents.tools:
            files -= {"chatmd", "conversation"}  # tools of agents
        assert len(found) == len(files)
