"""An agent and a tool in Python, for the database of Ferrowharf's shipments."""

import sqlite3
from pathlib import Path

import trio
from pydantic import BaseModel, Field

from engine import CallFailed, Context

HERE = Path(__file__).parent
# Bound on one statement, in steps of SQLite's virtual machine: a query over ten thousand rows needs about 100,000.
MAX_STEPS = 5_000_000
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class Query(BaseModel):
    """The parameters of `run_query`. The engine makes its JSON Schema from this, and checks every call against it."""

    sql: str = Field(description="One SELECT statement over the table `shipments`")
    rows: int = Field(20, ge=1, le=100, description="How many rows at most")


class Rows(BaseModel):
    columns: list[str]
    rows: list[list[str | int | float | None]]


class RunQuery:
    """Runs a SELECT statement against the database of shipments."""

    name = "run_query"
    parameters = Query
    returns = Rows
    annotations = {"readOnlyHint": True}
    timeout = 5

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript((HERE / "shipments.sql").read_text(encoding="utf-8"))
        # The statements come from models and untrusted callers: only reads are allowed from here on, and MAX_STEPS.
        self._database.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
        )
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def execute(self, params: Query, context: Context) -> Rows:
        # A blocking call would stop the whole server, so it runs in a thread.
        found = await trio.to_thread.run_sync(self._ask, params, limiter=self._one_at_a_time)
        context.log.info(f"{len(found.rows)} rows")
        return found

    def _ask(self, params: Query) -> Rows:
        self._database.set_progress_handler(lambda: 1, MAX_STEPS)
        try:
            cursor = self._database.execute(params.sql)
            names = [column[0] for column in cursor.description or ()]
            return Rows(columns=names, rows=[list(row) for row in cursor.fetchmany(params.rows)])
        except sqlite3.Error as error:
            # Shown to the caller, who can correct the statement. The text of any other exception would go to the log.
            raise CallFailed(f"the database says: {error}") from None


class ShipmentExpert:
    """Answers questions about shipments, from the database and the documents."""

    name = "shipment-expert"
    tools = ["search", "get", "run_query"]
    arguments = [{"name": "lane", "description": "Which lane, such as HAM-OSL", "required": False}]

    async def resolve(self, args, context: Context):
        counted = await context.call_tool(
            "run_query", {"sql": "SELECT status, count(*) FROM shipments GROUP BY status ORDER BY status"}
        )
        lines = [f"- {status}: {count}" for status, count in counted["rows"]]
        found = await context.search(f"lane {args['lane']}", limit=3) if args.get("lane") else []
        lines += [f"- {hit['title'] or hit['source_id']}: {hit['snippet']}" for hit in found]
        return {
            "system": "You answer questions about shipments. Query the table `shipments`"
            " (id, lane, carrier, status, kilograms) with `run_query` before you answer.\n\nWhat is known by now:\n"
            + "\n".join(lines)
        }
