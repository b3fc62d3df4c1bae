"""Sentence models on the command line: made vectors of, searched with, and checked."""

import json
from pathlib import Path

import pytest
import warm_start
from cli_support import Engine
from onnx_files import write_model

TEXTS = {"sky.md": "Moon and star.", "shop.md": "Refund of money."}


@pytest.fixture
def configured(tmp_path: Path) -> None:
    """A project whose model is in a folder, and whose documents are in another."""
    write_model(tmp_path / "model")
    (tmp_path / "docs").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "docs" / name).write_text(text)
    text = '[embedding]\nprovider = "path"\npath = "model"\n[connectors.filesystem.docs]\nroot = "docs"\n'
    (tmp_path / "engine.toml").write_text(text)


def test_a_sync_makes_vectors_with_the_model_of_a_folder_tells_so_and_searches_find_by_them(
    configured: None, engine: Engine, tmp_path: Path
) -> None:
    ended = engine("sync", "all", "--progress", "json")
    assert ended.code == 0
    assert json.loads(ended.err.splitlines()[-1]) == {"event": "embedding", "n": 2, "total": 2}
    ended = engine("search", "star", "--mode", "semantic", "--json")
    assert ended.json["results"][0]["source_id"] == "sky.md"
    assert "warnings" not in ended.json
    question = {"id": "1", "question": "star", "kind": "reworded", "answers": [{"source_id": "sky.md"}]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    ended = engine("eval", "questions.jsonl", "--mode", "semantic", "--json")
    assert (ended.code, ended.json["modes"]["semantic"]["ranks"]) == (0, {"1": 1})
    (tmp_path / "docs" / "sky.md").write_text("Moons and stars.")
    assert "embedding  1 / 1 documents" in engine("sync", "all", "--progress", "human").err
    ended = engine("embed", "rebuild", "--json")
    assert ended.json == {"embedded": 2, "failed": 0, "pending": 0}
    assert warm_start.children(recursive=True) == []


def test_vectors_are_not_removed_for_a_service_that_makes_none(
    configured: None, engine: Engine, tmp_path: Path
) -> None:
    assert engine("sync", "all").code == 0
    text = (tmp_path / "engine.toml").read_text()
    service = 'provider = "ollama"\nmodel = "m"\ndims = 4\nurl = "http://127.0.0.1:9"\nmax_retries = 0'
    (tmp_path / "engine.toml").write_text(text.replace('provider = "path"', service))
    ended = engine("embed", "rebuild")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("; the vectors stay as they are\n")
    (tmp_path / "engine.toml").write_text(text)
    assert engine("search", "star", "--mode", "semantic", "--json").json["results"][0]["source_id"] == "sky.md"


def test_doctor_starts_the_model_proves_its_layers_and_says_where_the_folder_is_wrong(
    configured: None, engine: Engine, tmp_path: Path
) -> None:
    report = engine("doctor", "--json").json
    embedder = report["embedder"]
    assert (embedder["ok"], embedder["model"], embedder["dims"]) == (True, "path", 4)
    assert embedder["message"].startswith("path, 4 dimensions, in a confined process; ")
    assert embedder["message"].endswith("; weights ok")
    assert "seccomp" in {layer["name"] for layer in embedder["layers"] if layer["state"] == "active"}
    (tmp_path / "model" / "model.onnx").write_bytes(b"not a model")
    ended = engine("doctor", "--json")
    assert (ended.code, ended.json["embedder"]["ok"]) == (2, False)
    assert "model.onnx is no model in ONNX" in ended.json["embedder"]["message"]
    ended = engine("search", "star", "--mode", "semantic")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "model.onnx is no model in ONNX" in ended.err
    assert "model.onnx" not in engine("search", "star").err  # words need no model
    engine("sync", "all")
    ended = engine("search", "star", "--mode", "hybrid", "--json")
    assert (ended.code, [hit["source_id"] for hit in ended.json["results"]]) == (0, ["sky.md"])
    (warning,) = ended.json["warnings"]
    assert "model.onnx is no model in ONNX" in warning
    assert warning.endswith("; answered by keyword search")


def test_doctor_says_which_model_the_extra_has(sentence_model: None, engine: Engine) -> None:
    embedder = engine("doctor", "--json").json["embedder"]
    assert (embedder["provider"], embedder["model"], embedder["ok"]) == ("auto", "all-minilm-l6-v2", True)
