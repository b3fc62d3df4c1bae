"""The tools of teams, as they are in the lists of tools."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.agent import Call
from agents.teams.catalog import TOOLS
from agents.teams.service import Teams
from agents.tool import Called, ToolInfo


@dataclass(frozen=True, slots=True)
class TeamsTool:
    """One of them. The seat of the call says for whom it acts."""

    info: ToolInfo
    _teams: Teams = field(repr=False)

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called:
        """Answer at once. Raises Problem."""
        return Called(await self._teams.answer(self.info.name, params, call))


def team_tools(teams: Teams) -> tuple[TeamsTool, ...]:
    """Every tool of teams."""
    return tuple(TeamsTool(tool.info, teams) for tool in TOOLS)
