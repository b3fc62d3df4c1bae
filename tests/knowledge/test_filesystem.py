import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unchanged, Unreadable
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.textfiles import Globs, markdown_title

OLD = 1_700_000_000  # long before any test: such a file counts as settled


def write(root: Path, *names: str, data: bytes | str = "text", mtime: int = OLD) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        os.utime(path, (mtime, mtime))


async def scan(root: Path, **options: Any) -> list[Found | Unchanged | Skipped]:
    return [entry async for entry in FilesystemConnector(root, **options).scan()]


async def names(root: Path, **options: Any) -> list[str]:
    return [entry.source_id for entry in await scan(root, **options) if isinstance(entry, Found)]


async def skipped(root: Path, **options: Any) -> dict[str, str]:
    return {entry.source_id: entry.reason for entry in await scan(root, **options) if isinstance(entry, Skipped)}


async def read(root: Path, name: str, **options: Any) -> Item:
    return await FilesystemConnector(root, **options).read(Found(source_id=name))


async def test_markdown_and_text_files_are_found_at_any_depth_in_order(root: Path) -> None:
    write(root, "b.txt", "a.md", "deep/er/c.md", "code.py", "noext")
    assert await names(root) == ["a.md", "b.txt", "deep/er/c.md"]


async def test_include_patterns_replace_the_default(root: Path) -> None:
    write(root, "a.md", "docs/b.rst", "docs/c.md", "other/d.rst")
    assert await names(root, include_globs=["docs/**/*.rst", "*.nothing"]) == ["docs/b.rst"]


async def test_excludes_follow_gitignore_rules_and_come_after_the_defaults(root: Path) -> None:
    write(
        root,
        ".git/a.md",
        "x/node_modules/b.md",
        "target/c.md",
        "drafts/d.md",
        "deep/drafts/e.md",
        "keep.md",
        "f.tmp.md",
    )
    assert await names(root) == ["deep/drafts/e.md", "drafts/d.md", "f.tmp.md", "keep.md"]
    assert await names(root, exclude_globs=["/drafts/", "*.tmp.md"]) == ["deep/drafts/e.md", "keep.md"]
    assert await names(root, exclude_globs=["**/drafts/**"]) == ["f.tmp.md", "keep.md"]
    assert await names(root, exclude_globs=["*", "!keep.md"]) == ["keep.md"]
    assert "target/c.md" in await names(root, exclude_globs=["!target/"])


async def test_links_are_not_followed_unless_asked_for(root: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/secret.md")
    write(root, "real.md")
    os.symlink(tmp_path / "outside" / "secret.md", root / "link.md")
    os.symlink(tmp_path / "outside", root / "folder")
    os.symlink(root / "real.md", root / "inside.md")
    os.symlink(root / "nothing", root / "dangling.md")
    os.symlink(root, root / "circle")
    assert await names(root) == ["real.md"]
    assert await names(root, follow_symlinks=True) == ["folder/secret.md", "inside.md", "link.md", "real.md"]
    assert (await read(root, "folder/secret.md", follow_symlinks=True)).body == "text"


async def test_a_file_or_folder_that_became_a_link_after_the_scan_is_not_read(root: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/secret.md", "outside/sub/secret.md")
    os.symlink(tmp_path / "outside" / "secret.md", root / "secret.md")
    os.symlink(tmp_path / "outside" / "sub", root / "sub")
    for name in ("secret.md", "sub/secret.md"):
        with pytest.raises(Unreadable, match="became a link"):
            await read(root, name)


async def test_a_pipe_in_a_files_place_neither_blocks_nor_is_read(root: Path) -> None:
    os.mkfifo(root / "pipe.md")
    assert await scan(root) == []
    with pytest.raises(Unreadable, match="not a regular file"):
        await read(root, "pipe.md")


async def test_a_file_that_is_not_utf8_is_unreadable_with_the_place(root: Path) -> None:
    write(root, "latin.md", data=b"caf\xe9")
    with pytest.raises(Unreadable, match=r"not UTF-8 \(byte 3\)"):
        await read(root, "latin.md")


async def test_a_file_name_that_is_not_utf8_is_skipped_with_a_reason(root: Path) -> None:
    write(root, os.fsdecode(b"caf\xe9.md"))
    write(root, "fine.md")
    assert await names(root) == ["fine.md"]
    assert await skipped(root) == {"caf\\xe9.md": "its name is not UTF-8"}


async def test_a_file_that_is_too_large_is_skipped_with_both_sizes_also_when_it_grew_later(root: Path) -> None:
    write(root, "big.md", data="x" * 101)
    write(root, "fits.md", data="x" * 100)
    assert await skipped(root, max_extract_bytes=100) == {"big.md": "too large: 101 bytes; max_extract_bytes is 100"}
    assert await names(root, max_extract_bytes=100) == ["fits.md"]
    with pytest.raises(Unreadable, match="too large: 101 bytes"):
        await read(root, "big.md", max_extract_bytes=100)


async def test_a_file_that_is_gone_is_unreadable_and_the_reason_names_no_path(root: Path) -> None:
    with pytest.raises(Unreadable) as caught:
        await read(root, "gone.md")
    assert str(root) not in str(caught.value)


async def test_a_missing_root_or_one_that_is_a_file_is_a_connector_error_without_a_path(root: Path) -> None:
    write(root, "file.md")
    for bad in (root / "missing", root / "file.md"):
        with pytest.raises(ConnectorError, match="its root") as caught:
            await scan(bad)
        assert str(root) not in str(caught.value)


async def test_a_folder_that_cannot_be_listed_hides_what_is_below_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "locked/a.md", "b.md")
    list_folder = os.scandir

    def refuse(path: Path) -> Any:
        if path.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [entry.source_id for entry in await scan(root)] == ["b.md", "locked/"]
    (hidden,) = [entry for entry in await scan(root) if isinstance(entry, Skipped)]
    assert (hidden.reason, hidden.below) == ("cannot be listed: Permission denied", True)


async def test_an_item_has_title_type_times_and_no_address_of_the_host(root: Path) -> None:
    write(root, "docs/a b.md", data="# The *real* `title`\n\nBody\n")
    write(root, "plain.txt", data="# not a heading here")
    item = await read(root, "docs/a b.md")
    assert item.title == "The real title"
    assert item.content_type == "text/markdown"
    assert item.created_at == item.updated_at == "2023-11-14T22:13:20Z"
    assert item.source_url is None
    plain = await read(root, "plain.txt", url_prefix="https://example.org/docs/")
    assert (plain.title, plain.content_type) == ("plain.txt", "text/plain")
    assert plain.source_url == "https://example.org/docs/plain.txt"
    assert (await read(root, "docs/a b.md", url_prefix="x/")).source_url == "x/docs/a%20b.md"


async def test_the_body_is_kept_as_it_is_but_for_a_byte_order_mark(root: Path) -> None:
    write(root, "a.md", data=b"\xef\xbb\xbf# T\r\n\r\nline\r\n")
    item = await read(root, "a.md")
    assert (item.body, item.title) == ("# T\r\n\r\nline\r\n", "T")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One\n\n# Two", "One"),
        ("intro\n\nSetext\n======\n", "Setext"),
        ("## Second level only", None),
        ("```\n# in a fence\n```\n", None),
        ("---\ntitle: From front matter\ntags: x\n---\n# Heading", "From front matter"),
        ("---\r\ntitle: 'Quoted: yes'\r\n---\r\nbody", "Quoted: yes"),
        ("---\ntags: x\n---\n\n# Heading", "Heading"),
        ("---\n\n# After a rule", "After a rule"),
        ("#\n\n# Not empty", "Not empty"),
        ("# A [link](http://x) &amp; more #", "A link & more"),
        ("# A [reference]\n\ntext\n\n[reference]: http://x", "A reference"),
        ("> # Quoted\n\n# Not quoted", "Quoted"),
        ("1. - # In a list", "In a list"),
        ("text\r# After an old Mac's line", "After an old Mac's line"),
        ("", None),
    ],
)
def test_the_title_is_the_front_matters_or_the_first_level_one_heading(text: str, title: str | None) -> None:
    assert markdown_title(text) == title


_MARKDOWN_PARTS = ["# a", "#", "## b", "=", "===", "text", "> ", "- ", "1. ", "```", "~~~", "    ", "\t", "\n", "\n\n"]
_MARKDOWN_PARTS += [
    "\r\n",
    "[x]",
    "[x]: /u",
    "<!--",
    "-->",
    "<div>",
    "# [x] *e* `c`",
    "\\# n",
    " ",
    "# c #",
    "---",
    "* ",
]


@given(st.lists(st.sampled_from(_MARKDOWN_PARTS), max_size=14).map("".join))
def test_a_title_is_found_without_the_text_below_it_as_with_it(text: str) -> None:
    whole = MarkdownIt("commonmark").parse(text)
    titles = [
        " ".join("".join(child.content or " " * (child.type == "softbreak") for child in inline.children or []).split())
        for opening, inline in pairwise(whole)
        if opening.type == "heading_open" and opening.tag == "h1"
    ]
    if not text.startswith("---"):  # which may begin front matter
        assert markdown_title(text) == next(filter(None, titles), None)


async def test_a_settled_files_version_changes_with_content_size_or_time_and_a_fresh_ones_is_not_trusted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a.md")
    (fresh,) = await scan(root)
    assert isinstance(fresh, Found)
    assert fresh.version == ""  # its mtime is old, but it was created just now
    clock = os.stat(root / "a.md").st_ctime_ns + 10_000_000_000
    monkeypatch.setattr("knowledge.connectors.filesystem.time.time_ns", lambda: clock)
    (settled,) = await scan(root)
    (again,) = await scan(root)
    assert settled == again
    assert isinstance(settled, Found)
    assert settled.version
    write(root, "a.md", data="another size")
    (changed,) = await scan(root)
    assert isinstance(changed, Found)
    assert changed.version != settled.version


_names = st.text(alphabet="ab.\n/md-é", min_size=1, max_size=12).filter(
    lambda name: "/" not in name and name.strip(".")
)
_patterns = st.sampled_from(["**/*.md", "*.d", "*md", "a.md", "a/", "b.md/", "*.a.md", "docs/*.md", "!*.md", "*"])


@given(
    folders=st.lists(_names, max_size=2),
    name=_names,
    include=st.lists(_patterns, max_size=2),
    exclude=st.lists(_patterns, max_size=2),
)
def test_a_file_is_taken_by_its_name_as_by_its_path(
    folders: list[str], name: str, include: list[str], exclude: list[str]
) -> None:
    globs = Globs(include, exclude, "gitignore")
    folder = "".join(f"{each}/" for each in folders)
    above = ["".join(f"{each}/" for each in folders[: n + 1]) for n in range(len(folders))]
    if not any(map(globs.excludes, above)):  # no walk enters such a folder
        assert globs.taken_in(folder)(name) == globs.take(folder + name)


async def test_files_of_known_versions_are_named_by_their_path_and_others_as_ever(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a.md", "b.md", "deep/c.md", "big.md")
    write(root, "new.md", mtime=OLD + 1)
    clock = os.stat(root / "new.md").st_ctime_ns + 10_000_000_000
    monkeypatch.setattr("knowledge.connectors.filesystem.time.time_ns", lambda: clock)
    versions = {entry.source_id: entry.version for entry in await scan(root) if isinstance(entry, Found)}
    del versions["new.md"]
    (root / "b.md").write_text("changed")
    (root / "big.md").write_text("x" * 20)
    os.utime(root / "big.md", (OLD, OLD))
    connector = FilesystemConnector(root, max_extract_bytes=10)
    connector.compare(versions | {"gone.md": "1.1.1.1"})
    entries = [entry async for entry in connector.scan()]
    same = [each for entry in entries if isinstance(entry, Unchanged) for each in entry.source_ids]
    assert sorted(same) == ["a.md", "deep/c.md"]
    assert {entry.source_id for entry in entries if isinstance(entry, Found)} == {"b.md", "new.md"}
    assert [entry.source_id for entry in entries if isinstance(entry, Skipped)] == ["big.md"]

    # What has changed a moment ago may change again with the same times: it is never known.
    monkeypatch.undo()
    connector.compare(dict.fromkeys(versions, ""))
    assert not [entry async for entry in connector.scan() if isinstance(entry, Unchanged)]
