import base64
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import warm_start
from effort import part
from git_support import Repository, served

from knowledge.connectors import ConnectorError, Found, Item, Skipped, opened
from knowledge.connectors.git import GitConnector, parse_address
from knowledge.sqlite.store import open_store
from knowledge.sync import SyncReport, sync

LABEL = "git:repo"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "served" / "repo")


def source(tmp_path: Path, url: str, **keys: Any) -> GitConnector:
    return GitConnector(url, cache_dir=tmp_path / "cache", **keys)


async def read(tmp_path: Path, url: str, **keys: Any) -> dict[str, Item | str]:
    """Every file of a source: its item, or the reason it was skipped."""
    found: dict[str, Item | str] = {}
    async with opened(source(tmp_path, url, **keys)) as connector:
        async for entry in connector.scan():
            if isinstance(entry, Skipped):
                found[entry.source_id] = entry.reason
            else:
                found[entry.source_id] = await connector.read(entry)
    return found


async def synced(tmp_path: Path, connector: GitConnector, **options: Any) -> SyncReport:
    async with open_store(tmp_path / "store.sqlite", create=True) as store:
        return await sync(store, LABEL, connector, **options)


def rows(tmp_path: Path) -> list[tuple[Any, ...]]:
    """All documents and chunks of the store, and its source's state but for the time of the sync."""
    db = apsw.Connection(str(tmp_path / "store.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    wanted = "id, source_id, source_url, title, author, created_at, updated_at, version, digest, metadata, body"
    return [
        *db.execute(f"SELECT {wanted} FROM documents ORDER BY source_id"),
        *db.execute("SELECT text FROM chunks ORDER BY text"),
        *db.execute("SELECT label, last_error FROM sources"),
    ]


def children_of_git() -> set[str]:
    """The command lines of every git that runs below this folder's cache."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if "core.hooksPath=/dev/null" in line or "git-remote-http" in line:
                found.add(line)
    return found


@pytest.mark.parametrize("shallow", [True, False])
@pytest.mark.parametrize("filters", [True, False])
async def test_each_file_has_the_author_and_time_of_the_commit_that_gave_it_its_content(
    tmp_path: Path, shallow: bool, filters: bool
) -> None:
    repo = Repository(tmp_path / "repo", filters=filters)
    first = repo.commit("Ann", a_md="# Alpha\n", docs__b_txt="one")
    second = repo.commit("Ben", docs__b_txt="two")
    repo.commit("Cid", code_py="print()")
    found = await read(tmp_path, repo.url, shallow=shallow)
    assert found == {
        "a.md": Item(
            body="# Alpha\n",
            title="Alpha",
            author="Ann",
            created_at="2026-01-01T00:00:01Z",
            updated_at="2026-01-01T00:00:01Z",
            content_type="text/markdown",
            metadata={"git_sha": first, "repo_url": repo.url},
        ),
        "docs/b.txt": Item(
            body="two",
            title="b.txt",
            author="Ben",
            created_at="2026-01-01T00:00:02Z",
            updated_at="2026-01-01T00:00:02Z",
            metadata={"git_sha": second, "repo_url": repo.url},
        ),
    }


async def test_a_root_below_the_top_gives_paths_below_it_and_the_same_commits(tmp_path: Path, repo: Repository) -> None:
    repo.commit("Ann", a_md="top")
    repo.commit("Ben", docs__deep__b_md="b")
    repo.commit("Cid", a_md="top again")
    found = await read(tmp_path, repo.url, root="./docs/")
    assert {name: item.author for name, item in found.items() if isinstance(item, Item)} == {"deep/b.md": "Ben"}
    with pytest.raises(ConnectorError, match="its branch 'main' has no folder 'nosuch'"):
        await read(tmp_path, repo.url, root="nosuch")
    with pytest.raises(ConnectorError, match=r"its branch 'main' has no folder 'a\.md'"):
        await read(tmp_path, repo.url, root="a.md")


async def test_a_merge_is_the_author_of_what_it_made_itself_only(tmp_path: Path, repo: Repository) -> None:
    repo.commit("Ann", a_md="1\n\n\n\n\n\n\n2\n", b_md="b", c_md="c")
    repo.git("checkout", "-q", "-b", "side")
    repo.commit("Side", a_md="one\n\n\n\n\n\n\n2\n", b_md="from the side")
    repo.git("checkout", "-q", "main")
    repo.commit("Main", a_md="1\n\n\n\n\n\n\ntwo\n")
    repo.minute += 1
    repo.git("merge", "-q", "--no-edit", "side", author="Merger")
    found = await read(tmp_path, repo.url)
    authors = {name: item.author for name, item in found.items() if isinstance(item, Item)}
    assert authors == {"a.md": "Merger", "b.md": "Side", "c.md": "Ann"}


async def test_a_sync_writes_what_changed_and_deletes_what_is_gone(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a", b_md="b", c_md="c")
    connector = source(tmp_path, repo.url)
    assert (await synced(tmp_path, connector)).upserted == 3
    assert (await synced(tmp_path, connector)).unchanged == 3
    repo.git("rm", "-q", "c.md")
    repo.commit(a_md="A")
    report = await synced(tmp_path, connector)
    assert (report.upserted, report.unchanged, report.deleted, report.skipped) == (1, 1, 1, [])
    repo.commit("Ben", a_md="a")  # as at first, but by another commit
    assert (await synced(tmp_path, connector)).upserted == 1
    assert rows(tmp_path)[0][4] == "Ben"


async def test_a_file_that_returns_to_an_old_content_is_downloaded_again(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="old", b_md="b")
    repo.commit(a_md="new")
    connector = source(tmp_path, repo.url)
    await synced(tmp_path, connector)
    repo.commit(a_md="old")
    report = await synced(tmp_path, connector)
    assert (report.upserted, report.skipped) == (1, [])


async def test_after_a_force_push_the_store_holds_the_new_history(tmp_path: Path, repo: Repository) -> None:
    first = repo.commit("Ann", a_md="a")
    repo.commit("Ben", b_md="b")
    connector = source(tmp_path, repo.url)
    await synced(tmp_path, connector)
    repo.git("reset", "-q", "--hard", first)
    repo.commit("Cid", c_md="c")
    report = await synced(tmp_path, connector)
    assert (report.upserted, report.unchanged, report.deleted) == (1, 1, 1)
    repo.git("checkout", "-q", "--orphan", "fresh")
    repo.commit("Dan", a_md="a")
    repo.git("branch", "-f", "main", "fresh")
    await synced(tmp_path, connector)
    assert {row[4] for row in rows(tmp_path) if len(row) > 10} == {"Dan"}


async def test_what_is_no_text_of_the_repository_is_skipped_with_a_reason(tmp_path: Path, repo: Repository) -> None:
    other = Repository(tmp_path / "other")
    commit = other.commit(x_md="x")
    repo.write("lfs.md", "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n")
    repo.write("binary.md", b"\xff\xfe\x00")
    repo.write("large.md", "x" * 2000)
    os.symlink("/etc/passwd", repo.path / "link.md")
    (repo.path / os.fsdecode(b"caf\xe9.md")).write_text("latin")
    repo.write("target/left-out.md", "x")
    repo.git("add", "-A")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendor/lib")
    repo.git("commit", "-q", "-m", "odd")
    repo.write("fine.md", "fine")
    repo.git("add", "fine.md")
    repo.git("commit", "-q", "-m", "fine")
    report = await synced(tmp_path, source(tmp_path, repo.url, max_extract_bytes=1000))
    assert report.upserted == 1
    assert dict(report.skipped) == {
        "lfs.md": "a pointer of Git LFS; the content is not in the repository",
        "binary.md": "not UTF-8 (byte 0)",
        "large.md": "too large: not downloaded; max_extract_bytes is 1000",
        "link.md": "a link",
        "caf\\xe9.md": "its name is not UTF-8",
        "vendor/lib/": "a submodule; add it as a source",
    }


async def test_a_file_that_is_too_large_is_not_downloaded_where_the_server_filters(tmp_path: Path) -> None:
    for filters, reason in ((True, "too large: not downloaded; "), (False, "too large: 3000000 bytes; ")):
        repo = Repository(tmp_path / f"repo{filters}", filters=filters)
        repo.write("large.md", random.Random(1).randbytes(3_000_000))
        repo.commit(a_md="small")
        cache = tmp_path / f"cache{filters}"
        async with opened(GitConnector(repo.url, cache_dir=cache, max_extract_bytes=100_000)) as connector:
            found = [entry async for entry in connector.scan()]
        assert [entry.source_id for entry in found] == ["a.md", "large.md"]
        assert isinstance(found[1], Skipped)
        assert found[1].reason == reason + "max_extract_bytes is 100000"
        held = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
        assert (held < 200_000) == filters
        if filters:  # and a larger bound brings it
            enough = GitConnector(repo.url, cache_dir=cache, max_extract_bytes=3_000_000)
            async with opened(enough) as connector:
                assert [type(entry) async for entry in connector.scan()] == [Found, Found]


async def test_globs_and_branches_select(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a", b_rst="b", drafts__c_md="c")
    repo.git("branch", "release/1.0")
    repo.commit(d_md="d")
    assert set(await read(tmp_path, repo.url, exclude_globs=["drafts/"])) == {"a.md", "d.md"}
    assert set(await read(tmp_path, repo.url, include_globs=["*.rst"])) == {"b.rst"}
    style = {"include_globs": ["*.{md,rst}"], "glob_style": "ctx"}
    assert set(await read(tmp_path, repo.url, branch="release/1.0", **style)) == {"a.md", "b.rst", "drafts/c.md"}
    with pytest.raises(ConnectorError, match="it has no branch 'nosuch'"):
        await read(tmp_path, repo.url, branch="nosuch")


async def test_a_repository_that_is_gone_leaves_what_was_stored(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a")
    connector = source(tmp_path, repo.url)
    await synced(tmp_path, connector)
    repo.path.rename(tmp_path / "away")
    with pytest.raises(ConnectorError, match="there is no repository at its address"):
        await synced(tmp_path, connector)
    assert [row[1] for row in rows(tmp_path) if len(row) > 10] == ["a.md"]
    (tmp_path / "away").rename(repo.path)
    assert (await synced(tmp_path, connector)).unchanged == 1


async def test_a_damaged_clone_is_made_again(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a", b_md="b")
    connector = source(tmp_path, repo.url)
    await synced(tmp_path, connector)
    for name in ("config", "HEAD"):
        (clone,) = (tmp_path / "cache").glob("*/clone")
        (clone / name).write_bytes(b"\0damaged")
        (next(clone.parent.glob("history-*"))).write_text("{")
        repo.commit(a_md=f"after {name}")
        assert (await synced(tmp_path, connector)).upserted == 1


# ---- over HTTP ----------------------------------------------------------------------------------------------------


async def test_a_repository_is_read_over_http_with_a_token_that_no_other_process_sees(
    tmp_path: Path, repo: Repository
) -> None:
    repo.commit(a_md="a")
    token = "s3cret-token"
    seen: list[str] = []

    async def watch() -> None:
        while True:
            seen.extend(children_of_git())
            await trio.sleep(0.005)

    with served(repo.path.parent) as server:
        server.password = token
        for keys in ({}, {"token": "wrong"}):
            with pytest.raises(ConnectorError, match="its server refuses access; check `token` or `ssh_key`"):
                await read(tmp_path, f"{server.url}/repo", **keys)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            found = await read(tmp_path, f"{server.url}/repo", token=token)
            nursery.cancel_scope.cancel()
        assert set(found) == {"a.md"}
        inside = server.url.replace("//", f"//x-access-token:{token}@")
        (item,) = (await read(tmp_path, f"{inside}/repo")).values()
        assert isinstance(item, Item)
        assert item.metadata["repo_url"] == f"{server.url}/repo"
    secrets = (token, base64.b64encode(f"x-access-token:{token}".encode()).decode())
    assert any("fetch" in line for line in seen)
    assert not any(secret in line for line in seen for secret in secrets)
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(secret.encode() in data for data in kept for secret in secrets)


async def test_a_token_does_not_follow_a_redirect(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a")
    with served(repo.path.parent) as server, served(repo.path.parent) as other:
        server.redirect = other.url
        with pytest.raises(ConnectorError, match="its server redirects; give the final address"):
            await read(tmp_path, f"{server.url}/repo", token="t")
        assert other.requests == []


async def test_a_server_that_cannot_be_reached_or_has_no_such_repository_is_said(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with (
        served(tmp_path / "served") as server,
        pytest.raises(ConnectorError, match="there is no repository at its address"),
    ):
        await read(tmp_path, f"{server.url}/nosuch")
    with pytest.raises(ConnectorError, match="its server cannot be reached"):
        await read(tmp_path, f"{server.url}/repo")


async def test_a_sync_that_is_cancelled_kills_and_reaps_its_children(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a")
    with served(repo.path.parent) as server:
        server.stall = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, tmp_path, f"{server.url}/repo")
            await trio.to_thread.run_sync(server.stalled.wait, 30)
            assert any("git-remote-http" in line for line in children_of_git())
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            while any(server.url in line for line in children_of_git()):  # noqa: ASYNC110
                await trio.sleep(0.02)
        assert warm_start.children() == []
        server.stall = False
        assert set(await read(tmp_path, f"{server.url}/repo")) == {"a.md"}


# ---- two at once, and killed --------------------------------------------------------------------------------------


async def test_two_sources_of_one_repository_share_a_clone(tmp_path: Path, repo: Repository) -> None:
    repo.commit(a_md="a", docs__b_md="b")
    found: dict[str, dict[str, Item | str]] = {}

    async def one(root: str) -> None:
        found[root] = await read(tmp_path, repo.url, root=root)

    async with trio.open_nursery() as nursery:
        for root in (".", "docs"):
            nursery.start_soon(one, root)
    assert {root: set(items) for root, items in found.items()} == {".": {"a.md", "docs/b.md"}, "docs": {"b.md"}}
    assert len(list((tmp_path / "cache").glob("*/clone"))) == 1


_CHILD = """
import sys, trio
from knowledge.connectors.git import GitConnector
from knowledge.sqlite.store import open_store
from knowledge.sync import sync
async def main(folder, url):
    async with open_store(folder + "/store.sqlite", create=True) as store:
        await sync(store, "git:repo", GitConnector(url, cache_dir=folder + "/cache"))
trio.run(main, *sys.argv[1:])
"""


@pytest.mark.whole
@pytest.mark.parametrize("seed", part(range(4), lambda _: None, one_in=2))
async def test_a_sync_that_is_killed_at_any_moment_resumes_to_what_an_undisturbed_one_gives(
    tmp_path: Path, repo: Repository, assert_consistent: Callable[[], None], seed: int
) -> None:
    for n in range(120):
        repo.write(f"d{n % 7}/f{n}.md", f"# File {n}\n" + "word " * 50 * n)
    repo.commit()
    chance = random.Random(seed)
    for turn in range(3):
        child = await warm_start.open_process([sys.executable, "-c", _CHILD, str(tmp_path), repo.url], cwd=ROOT)
        # A first sync takes 1.4 s on a busy machine.
        with trio.move_on_after(chance.uniform(0, 1.4)):
            await trio.sleep_forever()
        child.send_signal(signal.SIGKILL)
        await child.wait()
        for n in range(turn, 120, 11):
            repo.write(f"d{n % 7}/f{n}.md", f"# File {n} in turn {turn}\n")
        repo.git("rm", "-q", f"d{turn}/f{turn + 7}.md")
        repo.commit(f"Author {turn}")
    connector = source(tmp_path, repo.url)
    assert (await synced(tmp_path, connector)).skipped == []
    assert_consistent()
    calm = tmp_path / "calm"
    calm.mkdir()
    await synced(calm, source(calm, repo.url))
    assert rows(tmp_path) == rows(calm)
    (clone,) = (tmp_path / "cache").glob("*/clone")
    assert list(clone.rglob("*.lock")) == []


# ---- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("--upload-pack=touch /tmp/x", "may not begin with '-'"),
        ("ext::sh -c touch% x", "a space or a control"),
        ("ext::sh", r"names a helper program \(ext::\), which is refused"),
        ("git://example.com/r.git", "begins with git://, which is refused"),
        ("ftp://example.com/r", "begins with ftp://, which is refused"),
        ("ssh://-oProxyCommand=x/r", "ssh would take for an option"),
        ("ssh://%2doProxyCommand=x/r", "ssh would take for an option"),
        ("-oProxyCommand=x:r", "may not begin with '-'"),
        ("https://a.example/\nx", "a space or a control"),
        ("https:///r", "url has no host"),
        ("some/folder", "not the address of a repository"),
        ("", "not the address of a repository"),
    ],
)
def test_an_address_that_could_run_a_program_or_lie_is_refused_by_name(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(tmp_path, url)


@pytest.mark.parametrize("branch", ["-x", "a b", "a:b", "a..b", "x*", "a~1", "a.lock", "/a", "a/", "@{u}", "a\nb"])
def test_a_branch_that_is_no_name_is_refused(tmp_path: Path, branch: str) -> None:
    with pytest.raises(ValueError, match="is not a name of a branch"):
        source(tmp_path, "https://example.com/r", branch=branch)


@pytest.mark.parametrize("root", ["/etc", "..", "a/../../b"])
def test_a_root_outside_the_repository_is_refused(tmp_path: Path, root: str) -> None:
    with pytest.raises(ValueError, match="is not a folder inside the repository"):
        source(tmp_path, "https://example.com/r", root=root)


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("https://github.com/o/r.git", "https://github.com/o/r/blob/C/d/a%20b.md"),
        ("https://user:secret@github.com/o/r", "https://github.com/o/r/blob/C/d/a%20b.md"),
        ("git@github.com:o/r.git", "https://github.com/o/r/blob/C/d/a%20b.md"),
        ("ssh://git@gitlab.example.org:2222/g/s/r.git", "https://gitlab.example.org/g/s/r/-/blob/C/d/a%20b.md"),
        ("http://gitlab.local:8080/g/r", "http://gitlab.local:8080/g/r/-/blob/C/d/a%20b.md"),
        ("https://bitbucket.org/o/r", "https://bitbucket.org/o/r/src/C/d/a%20b.md"),
        ("https://codeberg.org/o/r/", "https://codeberg.org/o/r/src/commit/C/d/a%20b.md"),
        ("https://git.example.com/r.git", None),
        ("/srv/github/r.git", None),
    ],
)
def test_a_file_has_its_page_on_hosts_whose_pages_are_known(url: str, page: str | None) -> None:
    address = parse_address(url)
    assert (address.web and address.web.format(commit="C", path="d/a%20b.md")) == page
    assert "secret" not in address.fetch + address.shown


def test_the_secret_is_in_no_text_of_the_source(tmp_path: Path) -> None:
    connector = source(tmp_path, "https://u:pa55@example.com/r", token="0ther")
    assert "pa55" not in repr(vars(connector))
    assert "0ther" not in repr(vars(connector))
