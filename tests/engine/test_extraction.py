"""Texts of PDF, Office and HTML files: what survives, what is refused and why, and what a reader that was taken over
can reach. Every file goes through real confined processes.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import document_files as files
import psutil
import pytest
import trio
import warm_start
from git_support import Repository

import engine.extraction
from engine.config import parse_config
from engine.extraction import FORMATS, Extractor, open_extractor
from engine.work import LOOP_S
from knowledge.access import EVERYTHING
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.connectors.git import GitConnector
from knowledge.extraction import Extracted, Unreadable
from knowledge.sqlite.store import open_store
from knowledge.store import SearchQuery
from knowledge.sync import sync
from sandbox.wire.extraction import MAX_TEXT_BYTES

CONFIG, _ = parse_config("", environ={}, cwd=Path("/nonexistent"))
MIB = files.MIB
SECRET = "a secret of the host"


async def outcome(extractor: Extractor, name: str, data: bytes, content_type: str | None = None) -> Extracted | str:
    """The text, or the reason for which there is none."""
    try:
        return await extractor.extract(name, data, content_type)
    except Unreadable as error:
        return str(error)


async def outcomes(given: Mapping[str, bytes]) -> dict[str, Extracted | str]:
    async with open_extractor(CONFIG) as extractor:
        return {name: await outcome(extractor, name, data) for name, data in given.items()}


# ---- what survives --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def read() -> dict[str, Extracted | str]:
    """One file of each format, read by one extractor."""
    page = (
        "<html><head><title>Ports &amp; hosts</title><style>p {}</style></head><body><nav>Home</nav>"
        "<h1>Ports</h1><p>The API has <b>8080</b>.</p><h2>Übung</h2><ul><li>one<li>two</ul><pre>a = 1</pre></body>"
    )
    given = {
        "guide.pdf": files.pdf(["# Alpha\nfirst page", "", "third page"], title="The guide"),
        "untitled.pdf": files.pdf(["x"]),
        "book.docx": files.word(),
        "named.docx": files.word(title="A name"),
        "talk.pptx": files.slides(),
        "ports.xlsx": files.workbook(),
        "page.html": page.encode(),
        "latin.htm": page.replace("<title>", "<meta charset='iso-8859-1'><title>").encode("latin-1"),
        "really-a-pdf.txt": files.pdf(["found by how it begins"]),
    }
    return trio.run(outcomes, given)


def text(found: Extracted | str) -> Extracted:
    assert isinstance(found, Extracted), found
    return found


def test_a_pdf_is_the_text_of_its_pages_and_knows_where_they_begin(read: dict[str, Extracted | str]) -> None:
    found = text(read["guide.pdf"])
    assert (found.title, found.content_type) == ("The guide", "application/pdf")
    assert len(found.pages) == 3
    first, second, third = (found.body[a:b] for a, b in zip(found.pages, (*found.pages[1:], None), strict=True))
    assert (first.split(), second, third.strip()) == (["#", "Alpha", "first", "page"], "", "third page")


def test_a_file_without_a_title_is_called_by_its_name(read: dict[str, Extracted | str]) -> None:
    assert text(read["untitled.pdf"]).title == "untitled.pdf"


def test_a_word_document_keeps_headings_lists_and_tables(read: dict[str, Extracted | str]) -> None:
    found = text(read["book.docx"])
    assert found.title == "Handbook"
    assert found.body == (
        "# Handbook\n\n## Deploy\n\nShip on Tuesdays.\n\n\\# not a heading\n\n### Rollback\n\n- first\n- second\n\n"
        "| name | a\\|b |\n| --- | --- |\n| port | 8080 |\n"
    )
    assert text(read["named.docx"]).title == "A name"


def test_a_slide_is_a_page_with_its_title_and_its_notes(read: dict[str, Extracted | str]) -> None:
    found = text(read["talk.pptx"])
    assert found.body == "# Plan\n\nThree steps\n\nNotes: speak slowly\n\n# End\n\nQuestions\n"
    assert found.pages == (0, found.body.index("# End"))


def test_a_sheet_is_a_heading_with_rows(read: dict[str, Extracted | str]) -> None:
    assert text(read["ports.xlsx"]).body == "# Ports\n\n| service | port | share |\n| api | 8080 | 0.5 |\n"


@pytest.mark.parametrize("name", ["page.html", "latin.htm"])
def test_a_page_of_html_keeps_its_headings_and_loses_its_furniture(read: dict[str, Extracted | str], name: str) -> None:
    found = text(read[name])
    assert (found.title, found.content_type) == ("Ports & hosts", "text/html")
    for kept in ("# Ports\n", "The API has **8080**.", "## Übung\n", "- one\n- two", "a = 1"):
        assert kept in found.body
    assert "Home" not in found.body
    assert "p {}" not in found.body


def test_a_file_is_known_by_how_it_begins_as_well(read: dict[str, Extracted | str]) -> None:
    assert text(read["really-a-pdf.txt"]).body == "found by how it begins\n"


async def test_a_servers_type_counts_before_the_name() -> None:
    async with open_extractor(CONFIG) as extractor:
        assert extractor.takes("download", b"x", "text/html; charset=utf-8")
        assert not extractor.takes("notes.md", b"# text")
        assert (await extractor.extract("download", b"<h1>x</h1>", "text/html")).body == "# x\n"


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_files_without_text_are_refused_with_a_reason_and_the_next_one_is_read() -> None:
    whole, book = files.pdf(["one page " * 50] * 5), files.word()
    damaged = "cannot be read as a {}: damaged, cut off, or of another format"
    expected = {
        "encrypted.pdf": (files.pdf(["x"], password="p"), "encrypted with a password"),
        "scan.pdf": (files.scan(), "no text, a scan?"),
        "empty.pdf": (b"", "empty"),
        "line.pdf": (b"%PDF-1.7\n", damaged.format("PDF")),
        "text.pdf": (b"only text", damaged.format("PDF")),
        "cut.docx": (book[: len(book) // 2], damaged.format("Word document")),
        "cut.xlsx": (files.workbook()[:-40], damaged.format("workbook")),
        "other.xlsx": (book, damaged.format("workbook")),
        "other.pptx": (book, damaged.format("presentation")),
        "old.docx": (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
            "of a format of Office before 2007; save it as .docx, .pptx or .xlsx",
        ),
        "locked.docx": (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
            "encrypted with a password",
        ),
    }
    found = trio.run(outcomes, {name: data for name, (data, _) in expected.items()} | {"whole.pdf": whole})
    assert len(text(found.pop("whole.pdf")).pages) == 5
    assert found == {name: reason for name, (_, reason) in expected.items()}


def test_a_truncated_pdf_is_what_is_left_of_it_or_a_reason() -> None:
    whole = files.pdf(["one page"] * 5)
    found = trio.run(outcomes, {f"{part}.pdf": whole[: len(whole) * part // 8] for part in range(1, 8)})
    assert {type(each) for each in found.values()} <= {Extracted, str}
    assert all("reader" in each or "damaged" in each for each in found.values() if isinstance(each, str))


def test_bombs_end_within_the_caps_and_the_next_file_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    book, sheet, part = files.word(), files.workbook(), "word/document.xml"
    began = time.monotonic()
    found = trio.run(
        outcomes,
        {
            "bomb.pdf": files.pdf_bomb(896 * MIB),
            "zip.docx": files.replaced(book, part, b" " * (257 * MIB)),
            "liar.docx": files.replaced(book, part, b" " * (100 * MIB), claim=1000),
            "liar.xlsx": files.replaced(sheet, "xl/worksheets/sheet1.xml", b" " * (100 * MIB), claim=1000),
            "laughs.docx": files.entities(book, part),
            "outside.docx": files.entities(book, part, path=str(secret)),
            "deep.html": b"<div>" * 200_000 + b"x",
            "large.pdf": b"%PDF-1.4\n" + bytes(50 * MIB),
            "after.docx": book,
        },
    )
    assert time.monotonic() - began < 100
    assert found["zip.docx"] == "unpacks to more than any document needs"
    for name in ("bomb.pdf", "liar.docx", "liar.xlsx", "large.pdf"):
        assert isinstance(found[name], str), (name, str(found[name])[:200])
    for name in ("laughs.docx", "outside.docx", "deep.html"):
        shown = found[name]
        body = shown if isinstance(shown, str) else shown.body
        assert len(body) < 10_000, name
        assert SECRET not in body
    assert text(found["after.docx"]).title == "Handbook"


# ---- a reader that was taken over -----------------------------------------------------------------------------------

# In place of a library: it runs what is in the file.
TAKEN_OVER = """
import sandbox.extraction.main as honest
read = honest.answer
def answer(reader, data):
    if not data.startswith(b"#taken over"):
        return read(reader, data)
    said = lambda text: honest.ANSWER.pack(0, 0, 0, len(text)) + text
    names = {"honest": honest, "ANSWER": honest.ANSWER, "said": said}
    exec(data.decode(), names)
    return names["answer"]
honest.answer = answer
"""


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = "from sandbox.extraction.main import main\n"
    assert marker in engine.extraction._BOOT
    monkeypatch.setattr(engine.extraction, "_BOOT", engine.extraction._BOOT.replace(marker, TAKEN_OVER + marker))


STOPPED = "stopped by the sandbox: reading it led to a system call that no document needs"
NO_ANSWER = "its reader gave no answer that is one"

# What it does, and what the sync's report says of it; `answer` is what it sends.
ATTEMPTS: dict[str, tuple[str, str]] = {
    "a socket": ("import socket; socket.socket()", STOPPED),
    "a unix socket": ("import socket; socket.socketpair()", STOPPED),
    "a program": ("import os; os.execv('/bin/true', ['true'])", STOPPED),
    "a process": ("import os; os.fork()", STOPPED),
    "a thread": ("import threading; threading.Thread(target=print).start()", STOPPED),
    "a signal to its zygote": ("import os; os.kill(1, 9)", STOPPED),
    "a signal to all": ("import os; os.kill(-1, 9)", STOPPED),
    "another descriptor": ("import os; os.read(5, 1)", STOPPED),
    "a pipe": ("import os; os.pipe()", STOPPED),
    "memory that is code": ("import ctypes; ctypes.CDLL(None).mmap(0, 4096, 7, 34, -1, 0)", STOPPED),
    "a removed file": ("import os; os.unlink('/x')", STOPPED),
    "a module's last resort": ("import ctypes; ctypes.CDLL(None).syscall(321, 0, 0, 0)", STOPPED),
    "memory": ("x = bytearray(2 << 30)", NO_ANSWER),
    "an abort": (
        "import os; os.abort()",
        "crashed its reader: a damaged HTML page, or one that takes more than 512 MiB",
    ),
    "an end": ("import os; os._exit(0)", NO_ANSWER),
    "no answer": ("answer = b''", NO_ANSWER),
    "half a head": ("answer = bytes(8)", NO_ANSWER),
    "an unknown reason": ("answer = ANSWER.pack(99, 0, 0, 0)", NO_ANSWER),
    "a text that does not come": ("answer = ANSWER.pack(0, 0, 0, 1000) + b'x'", NO_ANSWER),
    "a text of 1 TB": ("answer = ANSWER.pack(0, 0, 0, 1 << 40)", NO_ANSWER),
    "a title of 4 GB": ("answer = ANSWER.pack(0, 0xffffffff, 0, 1)", NO_ANSWER),
    "pages without end": ("answer = ANSWER.pack(0, 0, 0xffffffff, 1)", NO_ANSWER),
    "no UTF-8": ("answer = said(b'\\xff\\xfe')", NO_ANSWER),
    "half a character": ("answer = said('é'.encode()[:1])", NO_ANSWER),
    "a lone surrogate": ("answer = said(b'\\xed\\xa0\\x80')", NO_ANSWER),
    "NUL": ("answer = said(b'a\\0b')", NO_ANSWER),
    "pages that go back": ("answer = ANSWER.pack(0, 0, 2, 3) + bytes([0, 0, 0, 2, 0, 0, 0, 1]) + b'abc'", NO_ANSWER),
    "a page behind the end": ("answer = ANSWER.pack(0, 0, 1, 3) + bytes([0, 0, 0, 4]) + b'abc'", NO_ANSWER),
    "a flood": ("import os\nwhile True: os.write(4, bytes([255]) * 65536)", NO_ANSWER),
}


@pytest.mark.usefixtures("taken_over")
def test_a_reader_that_was_taken_over_reaches_nothing_and_the_next_file_is_read() -> None:
    attempts = {f"{name}.html": f"#taken over\n{code}".encode() for name, (code, _) in ATTEMPTS.items()}
    found = trio.run(outcomes, attempts | {"after.html": b"<h1>after</h1>"})
    assert text(found.pop("after.html")).body == "# after\n"
    assert found == {f"{name}.html": reason for name, (_, reason) in ATTEMPTS.items()}


@pytest.mark.usefixtures("taken_over")
def test_it_finds_no_file_not_even_of_the_engine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    code = (
        "#taken over\nfound = []\n"
        f"paths = [{str(secret)!r}, '/', '/proc/self/environ', '/proc/1/environ', '/etc/passwd', honest.__file__]\n"
        "for path in paths:\n"
        "    try:\n        open(path).close(); found.append(path)\n    except OSError: pass\n"
        "import os\nanswer = said(repr((found, dict(os.environ))).encode())"
    )
    found = text(trio.run(outcomes, {"a.html": code.encode()})["a.html"])
    paths, environment = eval(found.body)
    assert paths == []
    assert set(environment) <= {"TZ", "LANG", "PATH", "GLIBC_TUNABLES", "LC_CTYPE"}


@pytest.mark.usefixtures("taken_over")
async def test_a_reader_that_computes_or_is_silent_ends_at_its_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.extraction, "CPU_S", 0.5)  # RLIMIT_CPU counts in seconds, and one more
    async with open_extractor(CONFIG) as extractor:
        # One after the other holds both places; the third file needs one.
        monkeypatch.setattr(engine.extraction, "WALL_S", 60.0)
        assert (
            await outcome(extractor, "a.html", b"#taken over\nwhile True: pass")
            == "takes more than 0.5 s of CPU time to read"
        )
        monkeypatch.setattr(engine.extraction, "WALL_S", 1.5)
        for code in ("time.sleep(1000)", "os.close(4); time.sleep(1000)"):
            found = await outcome(extractor, "a.html", f"#taken over\nimport os, time\n{code}".encode())
            assert found in ("took more than 1.5 s to read", STOPPED)
        monkeypatch.setattr(engine.extraction, "WALL_S", 60.0)
        assert text(await outcome(extractor, "a.html", b"<h1>x</h1>")).body == "# x\n"


class _Steps(trio.abc.Instrument):
    """The longest time for which a task kept the loop, in CPU time."""

    def __init__(self) -> None:
        self.longest_s, self._began_s = 0.0, time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


@pytest.mark.usefixtures("taken_over")
@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_the_largest_answers_do_not_keep_the_loop() -> None:
    largest = "answer = ANSWER.pack(0, 2048, 100000, 16 << 20) + b'\\n' * 2048 + bytes(400000)"
    answers = {
        "ascii": f"{largest} + b'a' * (16 << 20)",
        "wide": f"{largest} + '\U0001f600'.encode() * (4 << 20)",
    }
    async with open_extractor(CONFIG) as extractor:
        await extractor.prove()
        steps = _Steps()
        trio.lowlevel.add_instrument(steps)
        for name, code in answers.items():
            found = text(await outcome(extractor, "a.html", f"#taken over\n{code}".encode()))
            count = MAX_TEXT_BYTES if name == "ascii" else MAX_TEXT_BYTES // 4
            assert (found.title, len(found.pages), len(found.body)) == ("a.html", 100_000, count)
        trio.lowlevel.remove_instrument(steps)
    assert steps.longest_s < LOOP_S


OWNER = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]!r}
import psutil, trio, engine.extraction
from engine.config import parse_config
from pathlib import Path
marker = "from sandbox.extraction.main import main\\n"
engine.extraction._BOOT = engine.extraction._BOOT.replace(marker, {TAKEN_OVER!r} + marker)
async def main():
    config, _ = parse_config("", environ={{}}, cwd=Path("/nonexistent"))
    async with engine.extraction.open_extractor(config) as extractor, trio.open_nursery() as nursery:
        nursery.start_soon(extractor.extract, "a.html", b"#taken over\\nwhile True: pass")
        while len(found := psutil.Process().children(recursive=True)) < 3:
            await trio.sleep(0.05)
        print(*(each.pid for each in found), flush=True)
        await trio.sleep(600)
trio.run(main)
"""


@pytest.mark.usefixtures("warm")
def test_its_processes_end_with_their_owner() -> None:
    with warm_start.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) >= 3  # launcher, zygote, extractor
        owner.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while any(map(_lives, pids)):
        assert time.monotonic() < until, "they live on"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---- the process ----------------------------------------------------------------------------------------------------


async def test_an_extractor_has_the_layers_of_a_worker_and_without_a_required_one_reads_nothing() -> None:
    async with open_extractor(CONFIG) as extractor:
        layers = {layer.name: layer.state for layer in await extractor.prove()}
    assert set(layers.values()) <= {"active", "unavailable"}
    assert layers["seccomp"] == layers["rlimits"] == layers["no_new_privs"] == layers["process"] == "active"
    off, _ = parse_config('[sandbox]\ndisable = ["landlock"]\nrequire = ["landlock"]', environ={}, cwd=Path("/"))
    async with open_extractor(off) as extractor:
        assert "lacks the layer 'landlock'" in str(await outcome(extractor, "a.html", b"<p>x</p>"))


async def test_a_library_that_is_not_installed_is_a_reason_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.extraction, "find_spec", lambda name: None)
    async with open_extractor(CONFIG) as extractor:
        assert (
            await outcome(extractor, "a.pdf", b"%PDF-") == "a PDF, for which the extra `documents` has to be installed"
        )
        assert extractor.running is False  # nothing was started for it


async def test_a_zygote_that_is_killed_is_replaced_and_one_without_files_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.extraction, "IDLE_S", 0.2)
    async with open_extractor(CONFIG) as extractor:
        assert not extractor.running
        assert text(await outcome(extractor, "a.html", b"<p>x</p>"))
        for zygote in psutil.Process().children():
            if "sandbox.extraction" in " ".join(zygote.cmdline()):
                for each in (*zygote.children(recursive=True), zygote):
                    os.kill(each.pid, signal.SIGKILL)
        await _ended(extractor)
        assert text(await outcome(extractor, "a.html", b"<p>x</p>"))
        await _ended(extractor)
        assert text(await outcome(extractor, "a.html", b"<p>x</p>"))


async def _ended(extractor: Extractor) -> None:
    with trio.fail_after(30):
        while extractor.running:  # noqa: ASYNC110 (what ends it is its own)
            await trio.sleep(0.02)


def test_every_format_has_a_file_and_its_suffixes_are_its_own() -> None:
    folder = Path(engine.extraction.__file__).parents[1] / "sandbox" / "extraction"
    assert all((folder / f"{each.name}.py").is_file() for each in FORMATS)
    suffixes = [suffix for each in FORMATS for suffix in each.suffixes]
    assert len(suffixes) == len(set(suffixes))


# ---- sources --------------------------------------------------------------------------------------------------------


async def test_a_sync_stores_pages_skips_what_cannot_be_read_and_the_next_one_mends_it(tmp_path: Path) -> None:
    root = tmp_path / "files"
    root.mkdir()
    (root / "guide.pdf").write_bytes(files.pdf(["begin with the rotor", "", "tighten the sprocket"]))
    (root / "book.docx").write_bytes(files.word())
    (root / "notes.md").write_text("# Notes\n\ntext as before\n")
    (root / "late.pdf").write_bytes(files.scan())
    (root / "cut.xlsx").write_bytes(files.workbook()[:-30])
    async with (
        open_extractor(CONFIG) as extractor,
        open_store(tmp_path / "store.sqlite", create=True) as store,
    ):
        source = FilesystemConnector(root, include_globs=["*"], extractor=extractor)
        report = await sync(store, "filesystem:f", source)
        assert (report.upserted, sorted(report.skipped)) == (
            3,
            [
                ("cut.xlsx", "cannot be read as a workbook: damaged, cut off, or of another format"),
                ("late.pdf", "no text, a scan?"),
            ],
        )
        found = {
            hit.source_id: hit for hit in (await store.search(SearchQuery(query="rotor sprocket"), EVERYTHING)).hits
        }
        pages = await store.search(SearchQuery(query="sprocket", passages=3), EVERYTHING)
        assert [(hit.page, hit.heading, hit.title) for hit in pages.hits] == [(3, None, "guide.pdf")]
        assert pages.hits[0].passages is not None
        assert [(each.text, each.page) for each in pages.hits[0].passages] == [("tighten the sprocket", 3)]
        assert (await store.search(SearchQuery(query="rotor"), EVERYTHING)).hits[0].page == 1
        book = (await store.search(SearchQuery(query="Tuesdays"), EVERYTHING)).hits[0]
        assert (book.heading, book.page, book.title) == ("Handbook > Deploy", None, "Handbook")
        assert set(found) == {"guide.pdf"}
        (root / "late.pdf").write_bytes(files.pdf(["readable now"]))
        (root / "cut.xlsx").write_bytes(files.workbook())
        report = await sync(store, "filesystem:f", source)
        assert (report.upserted, report.unchanged, report.skipped) == (2, 3, [])
        assert (await store.search(SearchQuery(query="8080", path="*.xlsx"), EVERYTHING)).hits[0].heading == "Ports"


async def test_a_git_repository_gives_the_same_as_a_folder(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    (repository.path / "guide.pdf").write_bytes(files.pdf(["one", "two"], title="The guide"))
    repository.commit(notes_md="# Notes\n")
    async with open_extractor(CONFIG) as extractor:
        source = GitConnector(repository.url, cache_dir=tmp_path / "cache", include_globs=["*"], extractor=extractor)
        async with source.opened() as snapshot:
            items = {found.source_id: await snapshot.read(found) async for found in snapshot.scan()}
    assert {name: (item.title, item.content_type, len(item.pages)) for name, item in items.items()} == {
        "guide.pdf": ("The guide", "application/pdf", 2),
        "notes.md": ("Notes", "text/markdown", 0),
    }
    assert items["guide.pdf"].metadata["git_sha"] == items["notes.md"].metadata["git_sha"]
