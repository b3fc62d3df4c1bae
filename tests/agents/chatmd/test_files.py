"""A document on disk, with what it imports and what it names: real files, sound and hostile."""

import os
from pathlib import Path

import pytest

from agents.chatmd.diagnostics import MAX_MESSAGE, Diagnostic
from agents.chatmd.files import MAX_IMPORT_DEPTH, Loaded, Sizes, load
from agents.chatmd.tree import MAX_DEPTH, Element, Node, Text

SIZES = Sizes(1 << 20, 1 << 16, 10_000)


def put(folder: Path, **files: str) -> Path:
    """Write files; `sub__a` is sub/a.chatmd. Returns the document, which is called main."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.chatmd"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "main.chatmd"


def found(loaded: Loaded) -> list[str]:
    return [_shown(each) for each in loaded.diagnostics]


def _shown(each: Diagnostic) -> str:
    return f"{each.at.file}:{each.at.line}:{each.at.column} {each.code}"


def names(loaded: Loaded) -> list[str]:
    """The texts of messages, in order."""

    def text(node: Node) -> str:
        return node.text if isinstance(node, Text) else f"({''.join(map(text, node.children))})"

    return [text(node) for node in loaded.document.nodes]


def load_of(main: Path, sizes: Sizes = SIZES, **more: object) -> Loaded:
    return load(main, sizes, shown="p/main.chatmd", **more)  # type: ignore[arg-type]


def test_imports_are_replaced_by_what_they_name_from_their_own_files_folder(tmp_path: Path) -> None:
    main = put(
        tmp_path,
        main='<import src="sub/a.chatmd"/><user>x <import src="b.chatmd"/></user>',
        sub__a='<system>a</system><import src="c.chatmd"/><import src="../b.chatmd"/>',
        sub__c="<user>c</user>\n</user>",
        b='<agent src="https://x.example/">b</agent>',
    )
    loaded = load_of(main)
    assert names(loaded) == ["(a)", "(c)", "(b)", "(x (b))"]
    assert found(loaded) == ["p/sub/c.chatmd:2:1 stray-close"]
    assert [path.name for path in loaded.imported] == ["a.chatmd", "c.chatmd", "b.chatmd"]
    (_, second, _, _) = loaded.document.nodes
    assert (second.at.file, second.at.line) == ("p/sub/c.chatmd", 1)
    assert loaded.source == main.read_bytes()


def test_imports_in_what_was_said_are_text(tmp_path: Path) -> None:
    main = put(
        tmp_path, main='<assistant>use <import src="no.chatmd"/></assistant><msg role="tool"><import src="no"/></msg>'
    )
    assert found(load_of(main)) == ["p/main.chatmd:1:16 markup-in-record"]


def test_documents_images_and_agents_are_read_from_the_documents_folder(tmp_path: Path) -> None:
    main = put(
        tmp_path,
        main='<import src="sub/a.chatmd"/><tool name="t" agent="t.chatmd" local/>',
        sub__a='<user><doc src="d.md" local/><img src="i.png" local/><img src="https://x.example/i.png"/></user>',
        t="<user>t</user>",
    )
    (tmp_path / "d.md").write_text("text")
    (tmp_path / "i.png").write_bytes(b"\x89PNG")
    loaded = load_of(main)
    assert found(loaded) == []
    assert {path.name: content for path, content in loaded.files.items()} == {
        "d.md": b"text",
        "i.png": b"\x89PNG",
        "t.chatmd": b"<user>t</user>",
    }
    assert [path.name for path in loaded.agents] == ["t.chatmd"]


FORMS = ('<import src="{}"/>', '<user>\n  <img src="{}" local/></user>', '<tool name="t" agent="{}" local/>')


@pytest.mark.parametrize(
    ("src", "code"),
    [
        ("no.md", "file-missing"),
        ("no/no.md", "file-missing"),
        ("x" * 300, "file-missing"),
        ("a\\b", "file-missing"),
        ("../x", "file-outside"),
        ("../../x", "file-outside"),
        ("sub/../../x", "file-outside"),
        ("/etc/passwd", "file-outside"),
        ("https://x.example/a", "file-outside"),
        ("link", "file-outside"),
        ("linked/f.md", "file-outside"),
        ("fifo", "file-kind"),
        ("sub", "file-kind"),
        (".", "file-kind"),
        ("huge", "too-large"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_must_not_be_read_is_told_with_its_place_and_not_opened(
    tmp_path: Path, src: str, code: str, form: str
) -> None:
    folder = tmp_path / "p"
    main = put(folder, main=form.format(src) + '\n<user><doc src="good.md" local/></user>')
    (folder / "good.md").write_text("good")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (tmp_path / "x").write_text("outside")
    (tmp_path / "f.md").write_text("outside")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 30)  # without a byte on disk
    loaded = load_of(main)
    place = "2:3" if "\n" in form else "1:1"
    assert found(loaded) == [f"p/main.chatmd:{place} {code}"]
    assert src[:40] in loaded.diagnostics[0].message
    assert [path.name for path in loaded.files] == ["good.md"]  # and what follows is read


def test_other_roots_are_read_where_they_are_given(tmp_path: Path) -> None:
    main = put(tmp_path / "p", main='<import src="../shared/a.chatmd"/><user><doc src="../shared/d.md" local/></user>')
    put(tmp_path / "shared", a="<user>a</user>")
    (tmp_path / "shared" / "d.md").write_text("d")
    assert found(load_of(main)) == ["p/main.chatmd:1:1 file-outside", "p/main.chatmd:1:41 file-outside"]
    loaded = load_of(main, roots=[tmp_path / "shared"])
    assert (found(loaded), names(loaded)) == ([], ["(a)", "(())"])


def test_a_cycle_of_imports_is_told_where_it_closes(tmp_path: Path) -> None:
    main = put(
        tmp_path, main='<import src="a.chatmd"/>', a='\n <import src="./main.chatmd"/>\n<import src="a.chatmd"/>'
    )
    loaded = load_of(main)
    assert found(loaded) == ["p/a.chatmd:2:2 import-cycle", "p/a.chatmd:3:1 import-cycle"]
    assert "p/main.chatmd -> p/a.chatmd -> p/main.chatmd" in loaded.diagnostics[0].message


def test_imports_nest_to_a_bound(tmp_path: Path) -> None:
    chain = {f"f{n}": f'<import src="f{n + 1}.chatmd"/>' for n in range(1, MAX_IMPORT_DEPTH)}
    main = put(tmp_path, main='<import src="f1.chatmd"/>', **chain, **{f"f{MAX_IMPORT_DEPTH}": "<user>deep</user>"})
    assert (names(load_of(main)), found(load_of(main))) == (["(deep)"], [])
    put(tmp_path, **{f"f{MAX_IMPORT_DEPTH}": '<import src="end.chatmd"/>', "end": "<user>deeper</user>"})
    loaded = load_of(main)
    assert (names(loaded), found(loaded)) == ([], [f"p/f{MAX_IMPORT_DEPTH}.chatmd:1:1 import-depth"])


def test_elements_nest_to_a_bound_with_imports_too(tmp_path: Path) -> None:
    deep = "<user>" * (MAX_DEPTH - 1) + '<import src="b.chatmd"/>' + "</user>" * (MAX_DEPTH - 1)
    main = put(tmp_path, main=f"<user>{deep.replace('b.', 'a.', 1)}</user>"[6:-7], a="<user>a</user>")
    assert found(load_of(main)) == []
    put(tmp_path, a="<user>a <user/></user>")
    assert found(load_of(main)) == [f"p/main.chatmd:1:{6 * (MAX_DEPTH - 1) + 1} too-large"]


def test_a_document_and_its_imports_have_one_bound_in_bytes(tmp_path: Path) -> None:
    main = put(tmp_path, main='<import src="a.chatmd"/><import src="a.chatmd"/>', a="<user>a</user>")
    size = main.stat().st_size + 2 * (tmp_path / "a.chatmd").stat().st_size
    assert found(load_of(main, SIZES._replace(source_bytes=size))) == []
    assert found(load_of(main, SIZES._replace(source_bytes=size - 1))) == ["p/main.chatmd:1:25 too-large"]
    assert found(load_of(main, SIZES._replace(source_bytes=10))) == ["p/main.chatmd:1:1 too-large"]


def test_imports_that_double_are_stopped_by_the_bounds(tmp_path: Path) -> None:
    files = {f"f{n}": f'<import src="f{n + 1}.chatmd"/>' * 2 for n in range(60)}
    loaded = load_of(put(tmp_path, main='<import src="f0.chatmd"/>', **files, f60="<user/>"))
    assert {each.code for each in loaded.diagnostics} == {"too-large"}


def test_a_document_and_its_imports_have_one_bound_in_values(tmp_path: Path) -> None:
    main = put(tmp_path, main='<import src="a.chatmd"/>' * 3, a='<user name="x"/>' * 10)
    assert found(load_of(main)) == []
    assert "p/main.chatmd:1:49 too-large" in found(load_of(main, SIZES._replace(values=40)))


def test_a_configuration_of_an_import_comes_after_one_before_it(tmp_path: Path) -> None:
    main = put(tmp_path, main='<import src="a.chatmd"/><config model="b"/>', a='<config model="a"/>')
    assert found(load_of(main)) == ["p/main.chatmd:1:25 second-config"]
    assert isinstance(load_of(main).document.nodes[0], Element)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (".", None),
        ("docs", None),
        ("${workspace}/docs", None),
        ("${prompt_dir}", None),
        ("${source_dir}/docs", None),
        ("${home}/docs", "file-outside"),
        ("docs/${workspace}", "file-outside"),
        ("${workspace}/../x", "file-outside"),
        ("/", "file-outside"),
        ("link", "file-outside"),
        ("no", "file-missing"),
        ("n" * 5000, "file-missing"),
        ("main.chatmd", "file-kind"),
    ],
)
def test_the_folders_that_a_tool_reads_are_looked_at(tmp_path: Path, path: str, code: str | None) -> None:
    main = put(tmp_path, main=f'<tool name="read_file">\n <read id="x" path="{path}"/></tool>')
    (tmp_path / "docs").mkdir()
    (tmp_path / "link").symlink_to("docs")
    assert found(load_of(main)) == ([] if code is None else [f"p/main.chatmd:2:2 {code}"])


def test_a_folder_beside_an_imported_file_is_its_own(tmp_path: Path) -> None:
    main = put(
        tmp_path,
        main='<import src="sub/a.chatmd"/>',
        sub__a='<tool name="read_file"><read id="x" path="${source_dir}/docs"/></tool>',
    )
    assert found(load_of(main)) == ["p/sub/a.chatmd:1:24 file-missing"]
    (tmp_path / "sub" / "docs").mkdir()
    assert found(load_of(main)) == []


def test_strict_loading_is_strict_with_imports_too(tmp_path: Path) -> None:
    main = put(tmp_path, main='<import src="a.chatmd"/>', a='<user><doc src="https://x.example/"></user>')
    assert load_of(main).errors == []
    assert [_shown(each) for each in load_of(main, strict=True).errors] == ["p/a.chatmd:1:7 void-unclosed"]


def test_a_document_that_is_no_file_is_an_error_of_the_caller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "no", "."):
        with pytest.raises(OSError, match=r"regular|No such"):
            load_of(tmp_path / name)


def test_a_path_of_any_length_is_told_in_a_short_line_with_its_reason(tmp_path: Path) -> None:
    main = put(tmp_path, main=f'<user><doc src="{"../" * 100_000}x" local/></user><import src="{"a/" * 100_000}"/>')
    found = load_of(main).errors
    assert sorted(each.code for each in found) == ["file-missing", "file-outside"]
    for each in found:
        assert len(each.message) <= MAX_MESSAGE
        assert "…" in each.message
    assert any(": outside of " in each.message for each in found)
