"""Who sees what: a tenant's own first, then the shared ones; the first of one name wins; nothing of another tenant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import AgentInfo
from agents.registry import Registry
from agents.tool import ToolInfo


@dataclass(frozen=True)
class Named:
    info: AgentInfo | ToolInfo
    number: int


def agent(name: str, number: int = 0) -> Named:
    return Named(AgentInfo(name=name, description="", tools=(), source="toml"), number)


def tool(name: str, number: int = 0) -> Named:
    return Named(ToolInfo(name=name, description="", builtin=False, parameters={}), number)


def getter(registry: Registry, kind: str) -> Callable[[str, str], Any]:
    """A lookup that hands out what was added."""
    if kind == "agent":
        return registry.agent

    def tool(tenant: str, name: str) -> Any:
        offered = registry.tool(tenant, name)
        return offered and offered.tool

    return tool


@pytest.mark.parametrize("kind", ["agent", "tool"])
def test_of_two_with_one_name_the_first_wins(kind: str) -> None:
    registry = Registry()
    first, second = (agent("x", 1), agent("x", 2)) if kind == "agent" else (tool("x", 1), tool("x", 2))
    add = getattr(registry, f"add_{kind}")
    add(first, ("a", "b"))
    add(second, ("a", "c"))
    get = getter(registry, kind)
    assert (get("a", "x"), get("b", "x"), get("c", "x"), get("d", "x")) == (first, first, second, None)


@pytest.mark.parametrize("kind", ["agent", "tool"])
def test_what_is_shared_gives_way_to_a_tenants_own(kind: str) -> None:
    registry = Registry()
    general, own = (agent("x", 1), agent("x", 2)) if kind == "agent" else (tool("x", 1), tool("x", 2))
    getattr(registry, f"add_{kind}")(general, ("*",))
    getattr(registry, f"add_{kind}")(own, ("a",))
    get, listed = getter(registry, kind), getattr(registry, f"{kind}s")
    assert (get("a", "x"), get("b", "x")) == (own, general)
    assert (listed("a"), listed("b")) == ([own], [general])


def test_lists_keep_the_order_in_which_things_were_added() -> None:
    registry = Registry()
    for name in ("c", "a", "b"):
        registry.add_agent(agent(name), ("t",))
    assert [found.info.name for found in registry.agents("t")] == ["c", "a", "b"]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", "*"])), max_size=12))
def test_a_list_and_a_lookup_always_agree_and_show_nothing_of_others(added: list[tuple[str, str]]) -> None:
    registry = Registry()
    for number, (name, tenant) in enumerate(added):
        registry.add_agent(agent(name, number), (tenant,))
    for tenant in "abc":
        visible = {name for name, owner in added if owner in (tenant, "*")}
        listed = registry.agents(tenant)
        assert {found.info.name for found in listed} == visible
        assert len(listed) == len(visible)
        for found in listed:
            assert registry.agent(tenant, found.info.name) is found
        for name in set("xyz") - visible:
            assert registry.agent(tenant, name) is None
