"""What was published can be read back: by keys that publish or approve, byte for byte, and by no others."""

import json
from typing import Any
from urllib.parse import quote

import httpx2
from server_support import assert_envelope
from test_publish import LUA, Tenants, package, tenants

__all__ = ["tenants"]

# Paths that an address can hold, and some that it cannot.
FILES = {
    "data/tone.md": "Be brief.\n",
    "data/empty.txt": "",
    "data/a b.txt": "space\r\n",
    "é/ü.txt": "\ufeffumlauts \U0001f600 \u202e",
    "q\"u'ote.txt": "quotes",
    "nul.txt": "a\x00b",
    "%2B+.txt": "plus",
    "lua/deep/er/e/x.lua": "-- </script>",
}


async def get(tenants: Tenants, who: str, path: str, **headers: str) -> httpx2.Response:
    return await tenants.client.get(path, headers=tenants.keys[who] | headers)


async def publish(tenants: Tenants, version: str, files: dict[str, str], **more: Any) -> None:
    body = package("x", version, **more)
    body["files"] |= files
    answer = await tenants.client.put("/agents/helper", json=body, headers=tenants.keys["publish"])
    assert answer.status_code in (201, 202), answer.text


async def test_a_version_has_its_manifest_and_every_byte_of_its_files(tenants: Tenants) -> None:
    config = {"greeting": "hé", "files": {"main": 1}}
    await publish(tenants, "1.0+a", FILES, config=config, tools=["search"])
    for who in ("publish", "admin"):
        shown = (await get(tenants, who, "/agents/helper/versions/1.0+a")).json()
        listed = (await get(tenants, who, "/agents/helper/versions")).json()["versions"][0]
        assert {key: shown[key] for key in listed} == listed
        assert (shown["kind"], shown["main"], shown["config"], shown["tools"]) == ("lua", "a.lua", config, ["search"])
        assert (shown["arguments"], shown["changes"]) == (None, None)
        whole = {"a.lua": LUA % ("x", "x"), **FILES}
        assert {each["path"]: each["size"] for each in shown["files"]} == {
            path: len(text.encode()) for path, text in whole.items()
        }
        for path, text in whole.items():
            answer = await get(tenants, who, f"/agents/helper/versions/1.0+a/files?path={quote(path)}")
            assert (answer.status_code, answer.content) == (200, text.encode()), path
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("a.lua", "data/tone.md", "lua/deep/er/e/x.lua"):
            answer = await get(tenants, who, f"/agents/helper/versions/1.0%2Ba/files/{path}")
            assert answer.content == whole[path].encode()
            known = {"if-none-match": answer.headers["etag"]}
            again = await get(tenants, who, f"/agents/helper/versions/1.0+a/files/{path}", **known)
            assert (again.status_code, again.content) == (304, b"")


async def test_a_list_of_versions_that_is_known_is_304_until_it_changes(tenants: Tenants) -> None:
    await publish(tenants, "1", {})
    first = await get(tenants, "publish", "/agents/helper/versions")
    known = {"if-none-match": first.headers["etag"]}
    assert (await get(tenants, "publish", "/agents/helper/versions", **known)).status_code == 304
    await tenants.post("publish", "deprecate", "1")
    after = await get(tenants, "publish", "/agents/helper/versions", **known)
    assert (after.status_code, after.json()["versions"][0]["deprecated"]) == (200, True)


async def test_no_other_key_reads_a_version(tenants: Tenants) -> None:
    await publish(tenants, "1", FILES)
    for path in ("", "/files?path=a.lua", "/files/a.lua", "/files/data/tone.md"):
        target = f"/agents/helper/versions/1{path}"
        assert_envelope(await get(tenants, "use", target), 403, "forbidden")
        assert_envelope(await get(tenants, "other", target), 404, "not_found")
        assert_envelope(await tenants.client.get(target), 401, "unauthorized")
        assert (
            await get(tenants, "operator", f"{target}{'&' if '?' in target else '?'}tenant=acme")
        ).status_code == 200


ABSENT = (
    ("/agents/helper/versions/2", 404),
    ("/agents/nothing/versions/1", 404),
    ("/tools/helper/versions/1", 404),
    ("/agents/helper/versions/1/files/nothing.lua", 404),
    ("/agents/helper/versions/1/files/data", 404),
    ("/agents/helper/versions/1/files/a.lua/", 404),
    ("/agents/helper/versions/1/files/%2E%2E/a.lua", 404),
    ("/agents/helper/versions/1/files//a.lua", 404),
    ("/agents/helper/versions/1/files?path=../a.lua", 404),
    ("/agents/helper/versions/1/files?path=/home/x", 404),
    ("/agents/helper/versions/1/files?path=$.files", 404),
    ("/agents/helper/versions/1/files", 400),
    ("/agents/helper/versions/1/files?path=", 400),
    ("/agents/helper/versions/1/files?path=a.lua&path=b", 400),
    ("/agents/helper/versions/1/files?Path=a.lua", 400),
)


async def test_what_is_not_there_is_an_error_that_says_so(tenants: Tenants) -> None:
    await publish(tenants, "1", FILES)
    for path, status in ABSENT:
        answer = await get(tenants, "publish", path)
        assert answer.status_code == status, path
        assert_envelope(answer, status, "not_found" if status == 404 else "bad_request")


async def test_an_approver_sees_what_changes_beside_the_version_that_is_called(tenants: Tenants) -> None:
    await publish(tenants, "1", {"same.txt": "s", "old.txt": "o", "data.txt": "1"})
    await publish(tenants, "2", {"same.txt": "s", "data.txt": "2", "new.txt": "n"}, grants={"hosts": ["example.com"]})
    waiting = (await get(tenants, "admin", "/agents/helper/versions/2")).json()
    assert waiting["asks"] == {"hosts": ["example.com"]}
    changes = {"against": "1", "added": ["new.txt"], "removed": ["old.txt"], "changed": ["data.txt"]}
    assert waiting["changes"] == changes
    first = (await get(tenants, "admin", "/agents/helper/versions/1")).json()
    assert first["changes"] is None, "it is called, and none was before it"
    assert (await tenants.post("admin", "approve", "2")).status_code == 200
    assert (await get(tenants, "admin", "/agents/helper/versions/2")).json()["changes"] == changes
    assert (await get(tenants, "admin", "/agents/helper/versions/1")).json()["changes"]["against"] == "2"


async def test_a_large_version_is_read_without_keeping_the_loop_and_charged(tenants: Tenants) -> None:
    large = 'é\n"' * 150_000
    await publish(tenants, "1", {f"f{n}.txt": f"{n}{large}" for n in range(2)})
    shown = (await get(tenants, "publish", "/agents/helper/versions/1")).json()
    assert [each["size"] for each in shown["files"][1:]] == [len(f"0{large}".encode())] * 2
    answer = await get(tenants, "publish", "/agents/helper/versions/1/files/f1.txt")
    assert answer.text == f"1{large}"
    used = (await get(tenants, "publish", "/limits")).json()["quotas"]["cpu_seconds_per_minute"]["used"]
    assert used > 0.005
    assert json.loads((await get(tenants, "publish", "/health")).content)["status"] == "ok"
