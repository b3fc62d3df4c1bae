"""Sentence models in their confined process: what they answer, what survives a fault, and what one could reach.

Most tests run a model of one step, made here: the vector of a text is the mean of its pieces' rows. It starts in half
the time of the real one, which has the tests at the end.
"""

import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
import warm_start
from onnx_files import DIMS, PIECES, ROWS, onnx, write_model

from engine import embedders
from engine.config import ConfigError, parse_config
from engine.embedders import ConfinedEmbedder, open_embedders
from engine.embedding import process
from knowledge.access import EVERYTHING
from knowledge.embed import embed_pending
from knowledge.embedding import Embedder, Embedders, EmbeddingError, minilm
from knowledge.embedding.static import MODEL as STATIC
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery
from sandbox.wire.embedding import MAX_PIECES
from sandbox.wire.layers import NAMES
from storage.metering import metered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model."""
    return write_model(tmp_path / "model")


@asynccontextmanager
async def opened(folder: Path, keys: str = "") -> AsyncIterator[Embedders]:
    text = f'[embedding]\nprovider = "path"\npath = {json.dumps(str(folder))}\n{keys}'
    config, _ = parse_config(text, environ={}, cwd=Path("/nonexistent"))
    async with open_embedders(config) as made:
        assert made is not None
        yield made


def its_process(embedder: Embedder) -> process.ModelProcess:
    assert isinstance(embedder, ConfinedEmbedder)
    return embedder.process


def children() -> list[psutil.Process]:
    return warm_start.children(recursive=True)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not holds():  # noqa: ASYNC110 - of other processes
            await trio.sleep(0.02)


def numbers(vector: bytes) -> list[float]:
    return [round(value, 3) for value in struct.unpack(f"<{len(vector) // 4}f", vector)]


def cosine(one: bytes, other: bytes) -> float:
    count = len(one) // 4
    return sum(a * b for a, b in zip(struct.unpack(f"<{count}f", one), struct.unpack(f"<{count}f", other), strict=True))


# ---- what it answers ------------------------------------------------------------------------------------------------


async def test_a_model_of_a_folder_answers_in_order_behind_all_layers_and_ends_when_it_is_idle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder) as made:
        used = its_process(made.current)
        assert (made.current.model.name, made.current.model.dims, used.running) == ("path", DIMS, False)
        texts = ["Refund", "moon star", "refund refund unknown", "", "x " * 1000, *["money"] * 5]
        found = [numbers(each) for each in await made.current.embed(texts)]
        assert found[:3] == [[1, 0, 0, 0], [0, 0.196, 0.981, 0], [0.986, 0, 0, 0.164]]
        assert found[3:] == [[0, 0, 0, 0], [0, 0, 0, 1], *[[0.894, 0.447, 0, 0]] * 5]
        assert await made.current.embed([]) == []
        with metered() as meter:
            await made.current.embed(["moon " * 200] * 8)
        assert 0 < meter.take() < 5  # the process's time included
        # What is active here is active there: none had to be left out for the library.
        assert {layer.name for layer in used.layers} == set(NAMES)
        assert {layer.name for layer in used.layers if layer.state == "active"} >= {"process", "rlimits", "seccomp"}
        first = children()
        assert all(each.nice() == 19 for each in first)
        await made.current.embed(["moon"])
        assert children() == first
        monkeypatch.setattr(process, "IDLE_S", 0.05)
        await made.current.embed(["moon"])
        await until(lambda: not used.running and not children())
        assert numbers((await made.current.embed(["moon"]))[0]) == [0, 0, 1, 0]
    assert children() == []


async def test_a_query_that_is_given_up_is_charged_for_the_time_that_the_process_had_it(folder: Path) -> None:
    async with opened(folder) as made:
        await made.current.embed(["moon"])  # it runs now
        (model,) = [each for each in children() if not each.children()]
        model.suspend()
        try:
            with metered() as meter:
                with trio.move_on_after(0.3) as gave_up:
                    await made.current.embed(["star"])
                with trio.move_on_after(0.05):  # which the process never got
                    await made.current.embed(["refund"])
        finally:
            model.resume()
        assert gave_up.cancelled_caught
        assert 0.1 < meter.take() < 0.35
        assert numbers((await made.current.embed(["moon"]))[0]) == [0, 0, 1, 0]


async def test_a_query_goes_before_documents_and_one_that_is_given_up_stops_nothing(folder: Path) -> None:
    order: list[str] = []
    async with opened(folder) as made:
        await made.current.embed(["moon"])  # it runs now

        async def embed(name: str, *texts: str) -> None:
            await made.current.embed(texts)
            order.append(name)

        used = its_process(made.current)
        (model,) = [each for each in children() if not each.children()]
        taken: list[int] = []  # what the process is given, not what ends first: tasks that can run have no order
        take = used._next

        async def noted() -> object:
            job = await take()
            taken.append(len(job.texts))
            return job

        used._next = noted  # from the job after the next one
        model.suspend()
        try:
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(0.2):
                    await made.current.embed(["refund"])  # is under way when its caller gives up
                for name in ("one", "another"):
                    nursery.start_soon(embed, name, *["moon"] * 8)
                with trio.move_on_after(0.2):
                    await made.current.embed(["money"])  # has not begun
                nursery.start_soon(embed, "query", "star")
                await until(lambda: (len(used._single), len(used._others)) == (1, 2))
                model.resume()
        finally:
            model.resume()
        assert taken == [1, 4, 4, 4, 4]  # documents in parts, so that a query waits for no more than one
        assert sorted(order) == ["another", "one", "query"]
        assert model in children()


# ---- faults ---------------------------------------------------------------------------------------------------------


async def test_a_process_that_is_killed_is_replaced_and_the_text_is_embedded_all_the_same(folder: Path) -> None:
    async with opened(folder) as made:
        for _ in range(2):
            await made.current.embed(["moon"])
            (model,) = [each for each in children() if not each.children()]
            model.send_signal(signal.SIGKILL)
            assert numbers((await made.current.embed(["refund"]))[0]) == [1, 0, 0, 0]
        zygote = next(each for each in children() if each.children() and each.parent() != psutil.Process())
        zygote.kill()
        assert numbers((await made.current.embed(["refund"]))[0]) == [1, 0, 0, 0]


MARKER = "from sandbox.embedding.main import main\n"
# In place of the model: it runs what is in its vocabulary's place. A text is the number of one of these.
TAKEN_OVER = """
import sandbox.embedding.main as honest
codes = {codes!r}
good = honest._answer
def answer(run, texts):
    names = dict(vars(honest), answer=good(run, texts))
    if len(texts[0]) > 3:
        exec(codes[len(texts[0]) - 4], names)
    return names["answer"]
honest._answer = answer
"""
ATTEMPTS: Mapping[str, str] = {
    "a socket": "import socket; socket.socket()",
    "a program": "os.execv('/bin/true', ['true'])",
    "a process": "os.fork()",
    "a thread": "import threading; threading.Thread(target=print).start()",
    "a file": "open('/etc/passwd')",
    "a signal to its zygote": "os.kill(1, 9)",
    "another descriptor": "os.read(5, 1)",
    "memory that is code": "import ctypes; ctypes.CDLL(None).mmap(0, 4096, 7, 34, -1, 0)",
    "memory": "x = bytearray(4 << 30)",
    "an end": "os._exit(0)",
    "no answer": "answer = b''; os._exit(0)",
    "half a head": "answer = bytes(2); os.write(4, answer); os._exit(0)",
    "an unknown reason": "answer = ANSWER.pack(99, 0, 0)",
    "vectors of 4 GB": "answer = ANSWER.pack(0, 0xffffffff, 0)",
    "time without end": "answer = ANSWER.pack(0, 16, float('inf')) + bytes(15) + bytes([200])",
    "fewer vectors": "answer = ANSWER.pack(0, 4, 0) + bytes(4)",
    "NaN": "answer = ANSWER.pack(0, 16, 0) + bytes([0, 0, 192, 127]) * 4",
    "a vector of length 2": "answer = ANSWER.pack(0, 16, 0) + bytes([0, 0, 128, 63]) * 4",
}


async def test_a_model_that_was_taken_over_reaches_nothing_and_the_next_text_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MARKER in process._BOOT
    changed = TAKEN_OVER.format(codes=list(ATTEMPTS.values())).replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(process, "_BOOT", process._BOOT.replace(MARKER, changed + MARKER))
    async with opened(folder) as made:
        for number, name in enumerate(ATTEMPTS):
            with pytest.raises(EmbeddingError):
                await made.current.embed(["moon " * (number + 2)])
            assert numbers((await made.current.embed(["moon"]))[0]) == [0, 0, 1, 0], name


async def test_a_model_that_never_answers_is_given_up_and_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder) as made:
        await made.current.embed(["moon"])
        monkeypatch.setattr(process, "WALL_S", 1.0)
        for each in children():
            if not each.children():
                each.suspend()
        assert numbers((await made.current.embed(["refund"]))[0]) == [1, 0, 0, 0]


OWNER = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
import psutil, trio
from engine.config import parse_config
from engine.embedders import open_embedders
from pathlib import Path
async def main():
    text = '[embedding]\\nprovider = "path"\\npath = "' + sys.argv[1] + '"'
    config, _ = parse_config(text, environ={{}}, cwd=Path("/nonexistent"))
    async with open_embedders(config) as made:
        await made.current.embed(["moon"])
        print(*(each.pid for each in psutil.Process().children(recursive=True)), flush=True)
        await trio.sleep(600)
trio.run(main)
"""


@pytest.mark.usefixtures("warm")
def test_its_processes_end_with_their_owner(folder: Path) -> None:
    with warm_start.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) >= 3  # launcher, zygote, model
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


# ---- weights --------------------------------------------------------------------------------------------------------


async def test_weights_that_change_after_the_start_are_not_loaded(folder: Path) -> None:
    file = folder / "model.onnx"
    good = file.read_bytes()
    async with opened(folder) as made:
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(EmbeddingError, match=r"model\.onnx has changed since the engine started"):
            await made.current.embed(["moon"])
    async with opened(folder) as made:  # another model now
        assert made.current.model.weights != ""
    file.write_bytes(good)
    async with opened(folder) as made:
        assert await made.current.embed(["moon"])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model.onnx": None}, "model.onnx cannot be read: No such file or directory"),
        ({"model.onnx": b"\xff" * 100}, "model.onnx is no model in ONNX"),
        ({"model.onnx": onnx()[:50]}, "model.onnx is no model in ONNX"),
        ({"model.onnx": b""}, "model.onnx is no model in ONNX"),
        ({"model.onnx": onnx(dims=None)}, "model.onnx does not say how long its vectors are; set [embedding] dims"),
        ({"vocab.txt": None}, "neither vocab.txt nor tokenizer.json is there"),
        ({"vocab.txt": b"[UNK]\n[CLS]"}, "the vocabulary has no [SEP]"),
        ({"vocab.txt": b"\xff"}, "vocab.txt is not UTF-8"),
        ({"tokenizer_config.json": b'{"do_lower_case": false}'}, "tells upper case from lower case"),
        ({"vocab.txt": None, "tokenizer.json": b"["}, "tokenizer.json is not JSON"),
        ({"vocab.txt": None, "tokenizer.json": b'{"model": {"type": "BPE"}}'}, "has no vocabulary of WordPiece"),
        ({"1_Pooling/config.json": b'{"pooling_mode_mean_tokens": false}'}, "are not the mean of those of the pieces"),
    ],
)  # fmt: skip
async def test_a_folder_that_has_no_model_is_a_mistake_in_the_configuration(
    folder: Path, files: dict[str, bytes | None], said: str
) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)
    with pytest.raises(ConfigError) as error:
        async with opened(folder):
            pass
    assert str(error.value).startswith(f"embedding.path: {folder}: ")
    assert said in str(error.value)


async def test_the_vocabulary_may_be_that_of_a_tokenizer_and_dims_that_of_the_configuration(folder: Path) -> None:
    pieces = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = {"model": {"type": "WordPiece", "vocab": pieces}, "normalizer": {"lowercase": True}}
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model.onnx").write_bytes(onnx(dims=None))
    async with opened(folder, f"dims = {DIMS}") as made:
        assert numbers((await made.current.embed(["moon"]))[0]) == [0, 0, 1, 0]
    async with opened(folder, "dims = 5") as made:
        with pytest.raises(EmbeddingError, match="makes vectors of 4 numbers, not of 5"):
            await made.current.embed(["moon"])
    (folder / "model.onnx").write_bytes(onnx())
    with pytest.raises(ConfigError, match=r"makes vectors of 4 numbers; \[embedding\] dims is 5"):
        async with opened(folder, "dims = 5"):
            pass


async def test_a_graph_that_cannot_run_is_an_error_that_says_so(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(onnx().replace(b"Gather", b"Gothic"))
    async with opened(folder) as made:
        with pytest.raises(EmbeddingError, match="no model of sentences in ONNX that onnxruntime can run"):
            await made.current.embed(["moon"])
    (folder / "model.onnx").write_bytes(onnx(ROWS[:6]))  # too few rows for its vocabulary
    async with opened(folder) as made:
        with pytest.raises(EmbeddingError, match="the model cannot run on a text"):
            await made.current.embed(["star"])
        assert numbers((await made.current.embed(["refund"]))[0]) == [1, 0, 0, 0]


# ---- all-MiniLM-L6-v2 -----------------------------------------------------------------------------------------------


async def test_the_model_of_the_extra_understands_sentences_and_the_static_one_answers_until_it_has_read_all(
    sentence_model: None, tmp_path: Path
) -> None:
    config, _ = parse_config("", environ={}, cwd=tmp_path)
    query = SearchQuery(query="how do customers get their money back", mode="semantic")
    texts = ("Refunds are paid to the card of the buyer.", "The moon orbits the earth.")
    documents = [NewDocument(source_id=each, body=each, chunks=(each,), digest=each) for each in texts]
    path = tmp_path / "store.sqlite"
    async with open_embedders(config, query_s=60) as made:
        assert made is not None
        assert (made.current.model, made.others[0].model) == (minilm.MODEL, STATIC)
        async with open_store(path, create=True, embedders=made) as store:
            await store.apply(Batch(source="filesystem:x", upserts=documents))
            await embed_pending(store, made.others[0])
            words = await store.search(SearchQuery(query="refunds", mode="keyword"), EVERYTHING)
            before = await store.search(query, EVERYTHING)
            assert not its_process(made.current).running  # neither words nor the static model need it
            await embed_pending(store, made.current)
            after = await store.search(query, EVERYTHING)
            assert [answer.hits[0].source_id for answer in (words, before, after)] == [texts[0]] * 3
            assert before.hits[0].score != after.hits[0].score
        question, same, other, long = await made.current.embed((query.query, *texts, "word " * 1000))
        assert cosine(question, same) > 0.5
        assert cosine(question, other) < 0.1
        assert cosine(long, (await made.current.embed(("word " * (MAX_PIECES - 2),)))[0]) == pytest.approx(1)


async def test_weights_of_the_extra_with_one_byte_changed_are_refused_and_the_right_ones_still_work(
    sentence_model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = embedders.installed()
    assert right is not None
    damaged = tmp_path / "model.onnx"
    data = bytearray(right.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    config, _ = parse_config('[embedding]\nprovider = "local"', environ={}, cwd=tmp_path)
    monkeypatch.setattr(embedders, "installed", lambda: damaged)
    async with open_embedders(config) as made:
        assert made is not None
        with pytest.raises(EmbeddingError, match="damaged or gone"):
            await made.current.embed(["text"])
    monkeypatch.undo()
    assert embedders.provider(config) == "local"


async def test_without_the_extra_auto_is_the_static_model_and_local_an_error_that_names_it(tmp_path: Path) -> None:
    for text, model, works in (("", STATIC, True), ('[embedding]\nprovider = "local"', minilm.MODEL, False)):
        config, _ = parse_config(text, environ={}, cwd=tmp_path)
        async with open_embedders(config) as made:
            assert made is not None
            assert made.current.model == model
            if works:
                assert await made.current.embed(["text"])
            else:
                with pytest.raises(EmbeddingError, match="needs the extra `embedding`, which is not installed"):
                    await made.current.embed(["text"])
