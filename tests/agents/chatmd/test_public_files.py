"""The files of the project that ChatMD comes from: each is read to its tree, strictly and not.

They are no part of this repository: `CHATMD_FILES=FOLDER` names a clone of theirs, or its git directory.
"""

import os
import subprocess

import pytest

from agents.chatmd.reader import Bounds, Reading, read

FOLDER = os.environ.get("CHATMD_FILES")
WIDE = Bounds(1 << 30, 1 << 30)
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs the public files (CHATMD_FILES)")

# Of each file the version, the number of nodes, and the codes of its errors: as documents are read, and strictly. Files
# with errors as they are read hold notes about ChatMD with half of its tags, text of no element, or calls without ids.
FILES = {
    "examples/chatmd/hello.chatmd": ("50acc338c99a", 2, "", "markup-in-record"),
    "examples/chatmd/tools.chatmd": ("e4dc38c0f8a1", 5, "missing-attribute", "missing-attribute"),
    "prompt-examples/call_document.md": ("8dfe1060a42f", 3, "", "config-spelling"),
    "prompt-examples/coding_assistant.txt": ("2dd34006950d", 0, "top-level-text", "top-level-text"),
    "prompt-examples/default.md": ("49b0213727dc", 7, "", ""),
    "prompt-examples/discovery.md": ("4bb3b247d3c5", 8, "", "config-spelling"),
    "prompt-examples/document.md": ("7c85e0247532", 12, "", "config-spelling"),
    "prompt-examples/general-agent.md": ("c5d5eebd7c47", 10, "", "import-spelling"),
    "prompt-examples/git-tools.md": ("1d143ce06ca9", 16, "", ""),
    "prompt-examples/ocaml-coding-agent.md": ("3e32e1495b45", 17, "", "config-spelling"),
    "prompt-examples/pair-programmer-template.md": ("8b8b4f708cd1", 6, "", ""),
    "prompt-examples/research.md": ("94395d489841", 7, "", "config-spelling"),
    "prompt-examples/summarise.md": ("e6552ec220a9", 2, "", ""),
    "prompts/add_code_index.md": ("9ad54ece1e9a", 7, "", ""),
    "prompts/build_agent.md": (
        "0d5a07db0d1c",
        5,
        "mismatched missing-attribute",
        "import-spelling mismatched missing-attribute void-unclosed",
    ),
    "prompts/configs.md": ("e2ae9cf0c8e2", 3, "", ""),
    "prompts/dalle.md": ("6942772c2c75", 0, "top-level-text", "top-level-text"),
    "prompts/default.md": ("4a3351e9e91f", 9, "top-level-text", "top-level-text"),
    "prompts/index_vectors.md": ("a449e1331f1e", 12, "top-level-text", "top-level-text"),
    "prompts/lru_cache.md": (
        "797726b2069c",
        8,
        "mismatched missing-attribute",
        "mismatched missing-attribute void-unclosed",
    ),
    "prompts/markdown_context.md": ("70f656980152", 2, "", "import-spelling"),
    "prompts/output_file_test.md": ("4ac701935a3c", 3, "", ""),
    "prompts/pg.md": ("b59382e9e18c", 16, "", ""),
    "prompts/proposals.md": ("68d316b2740f", 0, "top-level-text", "top-level-text"),
    "prompts/query_vectors.md": ("81b06426b4fa", 4, "unclosed", "unclosed"),
    "prompts/s.md": ("30810aa36ad6", 1, "", ""),
    "prompts/summarize.md": ("2ee2c10dd75c", 2, "", ""),
    "prompts/summary.md": (
        "3d3d0b555d8e",
        1,
        "missing-attribute unclosed",
        "angle-in-attribute import-spelling missing-attribute not-supported unclosed void-unclosed",
    ),
    "prompts/test.md": ("aaf1927ac3be", 5, "", ""),
    "real-world-example-session/update-tool-docs/session-compact.md": (
        "1ea8d7df475e",
        11,
        "",
        "import-spelling markup-in-record",
    ),
    "real-world-example-session/update-tool-docs/session.md": (
        "0a4a36cb731d",
        161,
        "",
        "import-spelling markup-in-record",
    ),
}


def _errors(reading: Reading) -> str:
    return " ".join(sorted({each.code for each in reading.errors}))


@pytest.mark.parametrize("path", FILES)
def test_a_public_file_is_read_to_its_tree(path: str) -> None:
    version, nodes, errors, strict_errors = FILES[path]
    assert FOLDER is not None
    source = subprocess.run(["git", "-C", FOLDER, "cat-file", "blob", version], capture_output=True, check=True).stdout
    reading = read(source, WIDE, file=path)
    assert (len(reading.document.nodes), _errors(reading)) == (nodes, errors)
    assert _errors(read(source, WIDE, file=path, strict=True)) == strict_errors
