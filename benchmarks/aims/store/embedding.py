"""The local model in its confined process, beside the same model in a bare session of onnxruntime."""

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.aims.harness import Figures, take_turns, tree_cpu_s
from benchmarks.aims.store.corpus import pages
from engine.config import Config
from engine.config.models import EmbeddingConfig
from engine.embedders import installed, open_embedders
from knowledge.embedding import minilm
from knowledge.embedding.arrays import np
from knowledge.embedding.sentence import BEGIN, END
from knowledge.embedding.windows import parts, window
from knowledge.embedding.wordpiece import WordPiece
from sandbox.wire.embedding import MAX_PIECES


def is_installed() -> bool:
    """Whether the model and what runs it are here."""
    return installed() is not None


async def measure(texts: int, rounds: int) -> Figures:
    """`ours` and `bare`: texts for each second of CPU time, of all processes, in each round."""
    chunks = [(chunk, page.title) for page in pages(-(-texts // 10)) for chunk in page.chunks]
    asked = [window(part, title) for chunk, title in chunks for part in parts(chunk, title)]
    del asked[texts:]
    run = _session()
    words = WordPiece(minilm.vocabulary())
    begin, end = words.ids[BEGIN], words.ids[END]
    pieces = [[begin, *list(words.pieces(text))[: MAX_PIECES - 2], end] for text in asked]
    async with open_embedders(Config(embedding=EmbeddingConfig(provider="local"))) as embedders:
        assert embedders is not None
        model = embedders.current

        async def ours() -> float:
            began_s = tree_cpu_s(os.getpid())
            await model.embed(asked)
            return texts / (tree_cpu_s(os.getpid()) - began_s)

        async def bare() -> float:
            began_s = tree_cpu_s(os.getpid())
            for each in pieces:
                run(each)
            return texts / (tree_cpu_s(os.getpid()) - began_s)

        await model.embed(asked[:2])
        run(pieces[0])
        return await take_turns({"ours": ours, "bare": bare}, rounds)


def _session() -> Any:
    """From the pieces of a text to its vector, a text at a time and in one thread, as the process does."""
    import onnxruntime

    file = installed()
    assert file is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}

    def run(pieces: Sequence[int]) -> object:
        ids = np.array([pieces], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (found, *_) = session.run(None, {name: each for name, each in given.items() if name in wanted})
        return found[0].mean(0)

    return run
