"""A document in a package, read from the texts of its files. Pure but for time: in a thread for a large one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from agents.chatmd.building import MAX_NESTED, NotConverted, Opened, build, documents_in, nesting, pages_in
from agents.chatmd.diagnostics import Diagnostic, Position, diagnostic, errors
from agents.chatmd.files import Loaded, Sizes, load_packed
from agents.chatmd.opening import MAX_DOCUMENTS, Reading
from agents.chatmd.tree import walk

_NO_ADDRESS = "a package takes no texts from addresses"


def read_packed(
    files: Mapping[Path, bytes], main: Path, folder: Path, sizes: Sizes, refusal: Callable[[str], str | None], *,
    strict: bool, description: str | None,
) -> Reading:  # fmt: skip
    """The document `main` of a package with these files, below `folder`, with the documents inside it.

    A package takes nothing from addresses: its texts are files. Images may stay at addresses, unless `refusal` says why
    not. `source_bytes` and `values` bound all its documents together, and `fs_bytes` what they show of files: one that
    is named a thousand times is a thousand texts.
    """
    documents: dict[str, Loaded] = {}
    found: dict[Diagnostic, None] = {}
    left = sizes
    level = [main]
    for _ in range(MAX_NESTED + 1):
        inside: list[Path] = []
        for path in level:
            loaded = load_packed(files, path, folder, left, strict=strict)
            documents[str(path)] = loaded
            left = _less(left, loaded, files)
            found.update(dict.fromkeys(loaded.diagnostics))
            for key, element in documents_in(loaded).items():
                if "local" not in element.attributes:
                    _report(
                        found, "file-outside", f"<{element.name}>: a package takes nothing from addresses", element.at
                    )
                elif key not in documents and Path(key) in loaded.files and Path(key) not in inside:
                    if len(documents) + len(inside) >= MAX_DOCUMENTS:
                        _report(found, "too-large", f"<{element.name}>: more than {MAX_DOCUMENTS} of them", element.at)
                    else:
                        inside.append(Path(key))
        level = [path for path in inside if str(path) not in documents]
    for loaded in documents.values():
        _check_addresses(loaded, refusal, found)
    _check_shown(documents.values(), sizes.fs_bytes, found)
    found.update(dict.fromkeys(nesting(documents, str(main))))
    diagnostics = tuple(found)
    wrong = tuple(errors(diagnostics))
    fatal = frozenset(wrong)  # a document may have a hundred thousand errors
    warnings = tuple(str(each) for each in diagnostics if each not in fatal)
    if wrong:
        return Reading(None, wrong, warnings)
    opened = Opened(str(main), documents)
    kept = NotConverted("pages of a package are not converted")
    built = build(replace(opened, pages=dict.fromkeys(pages_in(opened), kept)), description)
    return Reading(built, built.errors, (*warnings, *built.warnings))


def _less(sizes: Sizes, loaded: Loaded, files: Mapping[Path, bytes]) -> Sizes:
    """What a document leaves to those inside it."""
    read = len(loaded.source) + sum(len(files[path]) for path in loaded.imported)
    values = sum(1 + len(element.attributes) for element in walk(loaded.document.nodes))
    named = sum(map(len, loaded.files.values()))
    return sizes._replace(
        source_bytes=max(sizes.source_bytes - read, 0),
        values=max(sizes.values - values, 0),
        together=max(sizes.all_files - named, 0),
    )


def _check_shown(documents: Iterable[Loaded], most: int, found: dict[Diagnostic, None]) -> None:
    left = most
    for loaded in documents:
        for element in walk(loaded.document.nodes):
            if element.name in ("doc", "img") and "local" in element.attributes and element.value("src"):
                left -= len(loaded.files.get(loaded.path_of(element.value("src")), b""))
                if left < 0:
                    message = f"<{element.name}>: the package shows more than {most} bytes of its files (fs_bytes)"
                    _report(found, "too-large", message, element.at)
                    return


def _check_addresses(loaded: Loaded, refusal: Callable[[str], str | None], found: dict[Diagnostic, None]) -> None:
    for element in walk(loaded.document.nodes):
        source = element.value("src")
        if element.name not in ("doc", "img") or "local" in element.attributes or not source:
            continue
        why = _NO_ADDRESS if element.name == "doc" else refusal(source)
        if why is not None:
            _report(found, "file-outside", f"<{element.name}>: {why}", element.at)


def _report(found: dict[Diagnostic, None], code: str, message: str, at: Position) -> None:
    found[diagnostic(code, message, at)] = None
