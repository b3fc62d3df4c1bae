"""`engine audit`: control actions, and denied host calls."""

import time
from typing import Annotated

from cyclopts import Parameter

from cli.control import control_for, when
from cli.options import AsJson, ConfigPath
from cli.output import UNUSABLE, Exit, say_json, table
from control.records import since as moment


async def audit(
    *,
    tenant: Annotated[str | None, Parameter(help="Only rows about this tenant, which may have been deleted.")] = None,
    since: Annotated[
        str | None, Parameter(help="Only rows since then: a period ago (2h, 7d), a date or a time.")
    ] = None,
    limit: Annotated[int, Parameter(help="At most this many rows, the newest.")] = 1000,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Print control actions and denied host calls, oldest first."""
    if limit < 1:
        raise Exit(UNUSABLE, f"--limit: expected a number above 0, got {limit}")
    async with control_for(config) as (_, control):
        start = None if since is None else moment(since, time.time())
        found = await control.audit.last(tenant=tenant, since=start, limit=limit)
    if as_json:
        say_json({"audit": [row.as_json() for row in found]})
        return
    table(
        ((when(row.at), row.actor, row.action, row.target, row.outcome, row.tenant or "") for row in found),
        heading=("AT", "ACTOR", "ACTION", "TARGET", "OUTCOME", "TENANT"),
        indent="",
    )
