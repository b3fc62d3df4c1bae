"""`GET /audit`: a tenant reads its own rows, all of them, once, and no other tenant's."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from keys_support import Keyed, keyed
from server_support import assert_envelope

from engine.errors import Problem
from server.rest.audit import MAX_ROWS, Cursors


async def every_page(client: httpx2.AsyncClient, limit: int, path: str = "/audit?") -> list[list[dict[str, Any]]]:
    """The pages, the newest first."""
    found: list[list[dict[str, Any]]] = []
    before = ""
    while True:
        answer = await client.get(f"{path}&limit={limit}{before}")
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["audit"])
        if answer.json()["before"] is None:
            return found
        before = f"&before={answer.json()['before']}"


async def busy(server: Keyed) -> None:
    for number in range(7):
        for tenant in ("acme", "other"):
            await server.control.secrets.set(tenant, f"S{number}", "the value", ["example.com"], actor="cli")
    server.control.audit.note_denied("acme", "echo", "http.get")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_every_row_of_its_own_is_on_one_page_and_no_row_of_others(limit: int, tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        await busy(server)
        async with server.client("admin") as client:
            pages = await every_page(client, limit)
        assert all(len(page) == limit for page in pages[:-1])
        rows = [row for page in reversed(pages) for row in page]
        expected = await server.control.audit.last(tenant="acme")
        assert rows == [row.as_json() for row in expected]
        assert {row["tenant"] for row in rows} == {"acme"}
        assert {row["action"] for row in rows} >= {"tenant.create", "key.create", "secret.set"}
        assert "the value" not in str(rows)


async def test_pages_stay_whole_while_new_rows_come(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        await busy(server)
        async with server.client("admin") as client:
            first = (await client.get("/audit?limit=3")).json()
            await busy(server)
            second = (await client.get(f"/audit?limit=3&before={first['before']}")).json()
        times = [row["target"] for row in [*second["audit"], *first["audit"]]]
        assert times == ["S1", "S2", "S3", "S4", "S5", "S6"]


async def test_a_tenant_that_has_the_name_of_a_deleted_one_sees_nothing_of_it(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        await busy(server)
        await server.control.tenants.delete("acme", actor="cli")
        await server.control.tenants.create("acme", actor="cli")
        _, key = await server.control.keys.create("acme", actor="cli", scopes=["admin"])
        async with server.running.client(headers={"x-api-key": key}) as client:
            rows = [row for page in await every_page(client, 2) for row in page]
        assert [row["action"] for row in sorted(rows, key=lambda row: row["action"])] == ["key.create", "tenant.create"]


async def test_the_operator_reads_the_rows_of_the_tenant_that_it_names(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        await busy(server)
        async with server.client("operator") as client:
            rows = (await client.get("/audit?tenant=other&limit=100")).json()["audit"]
        assert {row["tenant"] for row in rows} == {"other"}


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", f"limit={MAX_ROWS + 1}", "limit=x", "limit=-1", "limit=1e2", "limit=" + "9" * 400, "since=x"),
        *("limit=0000000011001", "limit=000000001" + "9" * 30, "limit=000000001" + "9" * 1900),
        *("before=x", "before=", "before=" + "A" * 22, "before=" + "A" * 1500, "before=1", "before=%C3%BC", "Before=x"),
        "limit=1&limit=2",
    ],
)
async def test_bad_parameters_are_named(query: str, tmp_path: Path) -> None:
    async with keyed(tmp_path) as server, server.client("admin") as client:
        error = assert_envelope(await client.get(f"/audit?{query}"), 400, "bad_request")
        assert query.partition("=")[0].lower() in error["message"]


async def test_since_ends_the_pages(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        await busy(server)
        async with server.client("admin") as client:
            assert (await client.get("/audit?since=2999-01-01")).json() == {"audit": [], "before": None}
            assert len(await every_page(client, 2, "/audit?since=1h")) > 3


def test_a_cursor_is_known_to_its_own_process_alone_and_shows_no_number() -> None:
    cursors, others = Cursors(), Cursors()
    texts = [cursors.text(number) for number in range(1, 200)]
    assert [cursors.number(text) for text in texts] == list(range(1, 200))
    assert len({text[:4] for text in texts}) > 190, "neighbours have nothing in common"
    for text in (texts[0][:-2] + "xx", texts[0] * 2, texts[0][:-1], others.text(5), "é", "\x00"):
        with pytest.raises(Problem, match="before: expected"):
            cursors.number(text)
