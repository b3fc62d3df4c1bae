"""Embedders at a service, against a server that speaks both routes over HTTP, and misbehaves as services do."""

import json
import logging
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from engine.config import Config, parse_config
from engine.embedders import open_embedders
from knowledge.access import EVERYTHING, Reader
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders, EmbeddingError, Model, service
from knowledge.embedding.queries import QueryVectors
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchAnswer, SearchQuery, StoreError

KEY = "sk-a-key-that-no-text-may-show"
DIMS = 26

# What a server does with one request: from the texts to the bytes of an answer; None for no answer at all.
Behaviour = Callable[[Sequence[str]], bytes | None]


def letters(text: str) -> list[float]:
    """How often each letter occurs, so that texts of the same letters are near."""
    return [float(text.lower().count(chr(97 + index))) + 0.01 for index in range(DIMS)]


def response(status: int, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", "content-type: application/json", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def failing(status: int, *headers: str) -> Behaviour:
    return lambda texts: response(status, json.dumps({"error": {"message": f"wrong: {KEY}"}}).encode(), *headers)


def cut_off(texts: Sequence[str]) -> bytes:
    """An answer whose end never comes."""
    return response(200, b'{"data": [{"index": 0, "embedding": [', "connection: close")[:-8]


@dataclass
class Server:
    """Both routes. `script` is what it does with the next requests; then comes `always`, by default what it should."""

    kind: str
    script: list[Behaviour] = field(default_factory=list)
    always: Behaviour | None = None
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    port: int = 0

    def good(self, texts: Sequence[str]) -> bytes:
        return self.answer([letters(text) for text in texts])

    def answer(self, vectors: Sequence[Sequence[float]]) -> bytes:
        if self.kind == "ollama":
            return response(200, json.dumps({"model": "m", "embeddings": vectors}).encode())
        data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(vectors)]
        return response(200, json.dumps({"object": "list", "data": data[::-1], "usage": {}}).encode())

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    if not (piece := await stream.receive_some()):
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                while len(data) < int(headers["content-length"]):
                    data += await stream.receive_some()
                body = json.loads(data[: int(headers["content-length"])])
                data = data[int(headers["content-length"]) :]
                self.requests.append((first.split()[1], headers, body))
                does = self.script.pop(0) if self.script else self.always or self.good
                said = does(body["input"])
                if said is None:
                    await trio.sleep_forever()
                try:
                    await stream.send_all(said)
                except trio.BrokenResourceError:  # it has had enough
                    return
                if b"connection: close" in said:
                    return


@asynccontextmanager
async def serving(kind: str, *script: Behaviour, always: Behaviour | None = None) -> AsyncIterator[Server]:
    server = Server(kind, list(script), always)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


def config(server: Server, **keys: object) -> Config:
    given = {"dims": DIMS, "max_retries": 2, "timeout_secs": 5, "model": "m", "url": f"http://127.0.0.1:{server.port}"}
    if server.kind == "openai":
        given |= {"api_key": "${KEY}", "url": f"http://localhost:{server.port}/v1"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in (given | keys).items() if value is not None]
    text = "\n".join(["[embedding]", f'provider = "{server.kind}"', *lines])
    found, _ = parse_config(text, environ={"KEY": KEY}, cwd=Path("/nonexistent"))
    return found


@asynccontextmanager
async def opened(server: Server, environ: dict[str, str] | None = None, **keys: object) -> AsyncIterator[Embedders]:
    async with open_embedders(config(server, **keys), environ=environ or {}) as made:
        assert made is not None
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pauses of seconds between tries."""
    monkeypatch.setattr(service, "_FIRST_PAUSE_S", 0.001)


def numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{DIMS}f", vector)


async def refused(made: Embedders, *texts: str) -> str:
    with pytest.raises(EmbeddingError) as error:
        await made.current.embed(texts or ("a text",))
    assert KEY not in str(error.value)
    assert KEY not in repr(error.value.__cause__)
    return str(error.value)


# ---- what is sent, and what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["openai", "ollama"])
async def test_texts_become_vectors_of_length_one_in_their_order_in_batches(kind: str) -> None:
    async with serving(kind) as server, opened(server, batch_size=2) as made:
        assert made.current.model == Model(f"{kind}:m", DIMS)
        found = await made.current.embed(["aab", "c", "zzz"])
        assert [max(range(DIMS), key=numbers(each).__getitem__) for each in found] == [0, 2, 25]
        assert all(sum(value * value for value in numbers(each)) == pytest.approx(1) for each in found)
        assert [body["input"] for _, _, body in server.requests] == [["aab", "c"], ["zzz"]]
        assert {path for path, _, _ in server.requests} == {"/v1/embeddings" if kind == "openai" else "/api/embed"}
        assert await made.current.embed([]) == []


async def test_the_key_is_of_the_configuration_or_of_the_environment_and_ollama_needs_none() -> None:
    async with serving("openai") as server:
        for keys, environ, sent in (
            ({}, {"OPENAI_API_KEY": "another"}, f"Bearer {KEY}"),
            ({"api_key": None}, {"OPENAI_API_KEY": KEY}, f"Bearer {KEY}"),
            ({"api_key": None}, {}, None),
        ):
            async with opened(server, environ, **keys) as made:
                assert await made.current.embed(["x"])
            assert server.requests[-1][1].get("authorization") == sent
    async with serving("ollama") as server, opened(server, {"OPENAI_API_KEY": KEY}) as made:
        assert await made.current.embed(["x"])
        assert "authorization" not in server.requests[-1][1]


async def test_models_that_shorten_their_vectors_are_asked_to_and_an_address_may_be_that_of_the_route() -> None:
    async with serving("openai") as server:
        url = f"http://127.0.0.1:{server.port}/some/embeddings"
        async with opened(server, model="text-embedding-3-small", url=url) as made:
            assert await made.current.embed(["x"])
        path, _, body = server.requests[-1]
        assert (path, body["dimensions"], body["encoding_format"]) == ("/some/embeddings", DIMS, "float")
        async with opened(server) as made:
            assert await made.current.embed(["x"])
        assert "dimensions" not in server.requests[-1][2]


async def test_vectors_of_the_dims_before_answer_until_all_documents_have_new_ones(path: Path) -> None:
    model = {"model": "text-embedding-3-small"}
    async with serving("openai") as server:
        asked: list[int] = []

        def shortened(texts: Sequence[str]) -> bytes:
            asked.append(server.requests[-1][2]["dimensions"])
            return server.answer([[1.0] * asked[-1] for _ in texts])

        server.always = shortened
        documents = [NewDocument(source_id="a.md", body="alpha", chunks=("alpha",), digest="d")]
        async with opened(server, **model, dims=4) as made, open_store(path, create=True, embedders=made) as store:
            await store.apply(Batch(source="filesystem:x", upserts=documents))
            await embed_pending(store, made.current)
        async with opened(server, **model, dims=6) as made, open_store(path, embedders=made) as store:
            assert [hit.source_id for hit in (await ask(store, "semantic", "alpha")).hits] == ["a.md"]
            await embed_pending(store, made.current)
            assert [hit.source_id for hit in (await ask(store, "semantic", "beta")).hits] == ["a.md"]
        assert asked == [4, 4, 6, 6]


@pytest.mark.parametrize("kind", ["openai", "ollama"])
async def test_texts_of_several_documents_are_one_request_and_a_refused_one_costs_no_other_its_vectors(
    kind: str, tmp_path: Path
) -> None:
    async with serving(kind) as server, opened(server) as made, open_store(tmp_path / "a.sqlite", create=True) as store:
        names = [f"{n:02}.md" for n in range(20)]
        bodies = {name: (f"first {name}", f"second {name}", "shared") for name in names}
        batch = [
            NewDocument(source_id=name, body="".join(each), chunks=each, digest=name) for name, each in bodies.items()
        ]
        await store.apply(Batch(source="filesystem:docs", upserts=batch))

        def does(texts: Sequence[str]) -> bytes | None:
            return failing(400)(texts) if any("first 13.md" in text for text in texts) else server.good(texts)

        server.always = does
        report = await embed_pending(store, made.current, batch_size=16)
        assert (report.embedded, report.failed, report.pending) == (19, 1, 1)
        sizes = [len(body["input"]) for _, _, body in server.requests]
        assert max(sizes) in (15, 16)  # the next document has more texts than there is room for
        assert len(sizes) < 20
        server.always, before = None, len(sizes)
        report = await embed_pending(store, made.current, batch_size=16)
        assert (report.embedded, report.failed, report.pending, len(server.requests)) == (1, 0, 0, before + 1)
        stats = await store.stats(EVERYTHING)
        assert sum(source.embedded for source in stats.sources) == stats.chunks == 60


# ---- services that misbehave ----------------------------------------------------------------------------------------


def broken(server: Server, how: str) -> Behaviour:
    """What a server answers that is wrong in this way."""

    def items(change: Callable[[list[dict[str, Any]]], Any]) -> Behaviour:
        def does(texts: Sequence[str]) -> bytes:
            data = [{"index": index, "embedding": letters(text)} for index, text in enumerate(texts)]
            return response(200, json.dumps({"data": change(data)}).encode())

        return does

    return {
        "another dimension": lambda texts: server.answer([letters(text)[:-1] for text in texts]),
        "NaN": lambda texts: server.answer([[float("nan")] * DIMS for _ in texts]),
        "infinite": lambda texts: server.answer([letters(text) for text in texts]).replace(b"0.01", b"1e99"),
        "zeros": lambda texts: server.answer([[0.0] * DIMS for _ in texts]),
        "fewer": lambda texts: server.answer([letters(text) for text in texts[1:]]),
        "none": lambda texts: server.answer([]),
        "doubled index": items(lambda data: [{**each, "index": 0} for each in data]),
        "index from 1": items(lambda data: [{**each, "index": each["index"] + 1} for each in data]),
        "not JSON": lambda texts: response(200, b"<html>maintenance</html>"),
        "another shape": lambda texts: response(200, b'{"data": {"embedding": "text"}, "embeddings": [1]}'),
        "nested": lambda texts: response(200, b'{"x":' + b"[" * 50_000),
        "10 MB": lambda texts: response(200, b'{"x":"' + b" " * 10_000_000 + b'"}'),
    }[how]


@pytest.mark.parametrize(
    ("kind", "how", "said"),
    [
        *(
            (kind, how, said)
            for kind in ("openai", "ollama")
            for how, said in {
                "another dimension": "answered vectors of 25 dimensions; [embedding] dims is 26",
                "NaN": "answered with what is no list of vectors",
                "infinite": "answered a vector with a number that is not finite",
                "zeros": "answered a vector of zeros",
                "fewer": "answered 1 vectors for 2 texts",
                "none": "answered 0 vectors for 2 texts",
                "not JSON": "answered with what is no list of vectors",
                "another shape": "answered with what is no list of vectors",
                "nested": "answered with what is no list of vectors",
                "10 MB": "the answer is larger than 67616 bytes",
            }.items()
        ),
        ("openai", "doubled index", "numbers its vectors in a way that does not say which text each is of"),
        ("openai", "index from 1", "numbers its vectors in a way that does not say which text each is of"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_that_says_why_and_the_next_one_works(
    kind: str, how: str, said: str, quick: None
) -> None:
    async with serving(kind) as server, opened(server) as made:
        server.script = [broken(server, how)]
        assert said in await refused(made, "one", "two")
        assert len(server.requests) == 1  # a server that answers nonsense is not asked again
        assert len(await made.current.embed(["one", "two"])) == 2


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "refuses the key"), (400, "does it have this model"), (404, "no such model"), (302, "status 302")],
)
async def test_a_refusal_is_not_tried_again_and_its_text_is_not_shown(status: int, said: str, quick: None) -> None:
    refusal = failing(status, "location: http://127.0.0.1:1/stolen")
    async with serving("openai", refusal) as server, opened(server) as made:
        assert said in await refused(made)
        assert len(server.requests) == 1
        assert await made.current.embed(["x"])


@pytest.mark.parametrize(
    "fault",
    [failing(429), failing(500), failing(503), cut_off],
)
async def test_a_fault_that_passes_is_tried_again_and_one_that_stays_is_an_error_after_so_many_tries(
    fault: Behaviour, quick: None
) -> None:
    async with serving("openai", fault, fault) as server, opened(server) as made:
        assert len(await made.current.embed(["x"])) == 1
        assert len(server.requests) == 3
        server.always = fault
        await refused(made)
        assert len(server.requests) == 6
        server.always = None
        assert len(await made.current.embed(["x"])) == 1


async def test_pauses_grow_and_are_as_long_as_the_service_says_but_never_over_a_minute(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down:
        """What posts to a service that is down; the clock is ours, so there is no socket to wait for."""

        def __init__(self) -> None:
            self.said, self.at = "", list[float]()

        async def post(self, *args: object, **keys: object) -> Any:
            self.at.append(trio.current_time())
            return service.Fetched(503, {"retry-after": self.said} if self.said else {}, b"")

    down = Down()
    made = service.ServiceEmbedder("it", Model("m", 3), service.Settings("http://x"), down, {}, lambda body, count: [])
    for said, pauses in (("", [1, 2, 4, 8, 16]), ("7", [7] * 5), ("86400", [60] * 5), ("soon", [1, 2, 4, 8, 16])):
        down.said, down.at = said, []
        with pytest.raises(EmbeddingError, match="status 503"):
            await made.embed(["x"])
        assert [round(later - earlier) for earlier, later in zip(down.at, down.at[1:], strict=False)] == pauses
    down.at = []
    with trio.move_on_after(2) as scope, pytest.raises(EmbeddingError):
        await made.embed(["x"])
    assert (len(down.at), scope.cancelled_caught) == (1, False)  # a search answers by words at once


async def test_a_service_that_is_not_there_never_answers_or_ends_in_the_middle_is_an_error_in_time(quick: None) -> None:
    silent = serving("ollama", always=lambda texts: None)
    async with silent as server, opened(server, timeout_secs=0.3, max_retries=1) as made:
        assert "takes longer than 0.3 s" in await refused(made)
        assert len(server.requests) == 2
        server.always = None
        assert await made.current.embed(["x"])
    async with opened(server, max_retries=1) as made:
        assert "does not accept connections" in await refused(made)


async def test_no_key_is_in_a_log_or_in_what_is_printed_of_a_configuration(
    caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving("openai", failing(401)) as server, opened(server) as made:
        await refused(made)
        assert await made.current.embed(["x"])
        assert KEY not in repr(config(server)) + repr(vars(made.current)) + caplog.text


# ---- searches while a service fails ---------------------------------------------------------------------------------


@asynccontextmanager
async def searched(kind: str, path: Path) -> AsyncIterator[tuple[Server, Embedders, SqliteStore]]:
    """A service and a store with two documents and their vectors."""
    texts = ("refund of money", "moon and stars")
    documents = [NewDocument(source_id=each, body=each, chunks=(each,), digest=each) for each in texts]
    async with serving(kind) as server, opened(server) as made, open_store(path, create=True, embedders=made) as store:
        await store.apply(Batch(source="filesystem:x", upserts=documents))
        assert (await embed_pending(store, made.current)).embedded == 2
        yield server, made, store


async def ask(store: SqliteStore, mode: Any, query: str = "refund") -> SearchAnswer:
    return await store.search(SearchQuery(query=query, mode=mode), EVERYTHING)


async def test_while_a_service_fails_hybrid_answers_by_words_semantic_is_an_error_and_the_next_search_works(
    path: Path,
) -> None:
    async with searched("openai", path) as (server, _, store):
        server.always = failing(503)
        answer = await ask(store, "hybrid")
        assert [hit.source_id for hit in answer.hits] == ["refund of money"]
        assert answer.warnings == ("the service of embeddings answered with status 503; answered by keyword search",)
        with pytest.raises(StoreError, match="status 503"):
            await ask(store, "semantic")
        server.always = lambda texts: None
        begun = trio.current_time()
        answer = await ask(store, "hybrid")
        assert answer.warnings == ("the embedder did not answer within 2 s; answered by keyword search",)
        assert trio.current_time() - begun < 10
        server.always = lambda texts: server.answer([[1.0, 2.0]])
        with pytest.raises(StoreError, match="vectors of 2 dimensions"):
            await ask(store, "semantic")
        server.always = None
        answer = await ask(store, "semantic", "moons")
        assert (answer.hits[0].source_id, answer.warnings) == ("moon and stars", ())


async def test_the_vector_of_a_query_is_kept_for_its_reader(path: Path) -> None:
    async with searched("ollama", path) as (server, _, store):
        asked = len(server.requests)
        for mode in ("semantic", "hybrid"):
            assert (await ask(store, mode)).hits
        assert len(server.requests) == asked + 1
        found = await store.search(SearchQuery(query="refund", mode="semantic"), Reader.of({"staff"}))
        assert (len(found.hits), len(server.requests)) == (2, asked + 2)


def test_kept_vectors_are_bounded_by_their_bytes_and_the_least_recently_used_go_first() -> None:
    kept, model = QueryVectors(max_bytes=1000), Model("m", 25)
    for text in ("a", "b", "c"):
        kept.keep("reader", model, text, text.encode() * 100)
    assert kept.get("reader", model, "a") == b"a" * 100
    kept.keep("reader", model, "d", b"d" * 100)
    assert [text for text in "abcd" if kept.get("reader", model, text)] == ["a", "c", "d"]
    assert kept.get("another", model, "a") is None
    assert kept.get("reader", Model("m", 25, "other weights"), "a") is None
    kept.keep("reader", model, "x" * 1000, b"x" * 100)
    assert [text for text in ("a", "c", "d", "x" * 1000) if kept.get("reader", model, text)] == []
    kept.keep("reader", model, "a", b"a" * 100)
    assert kept.get("reader", model, "a") == b"a" * 100
