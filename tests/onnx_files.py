"""A sentence model of one step, in ONNX: the vector of a text is the mean of its pieces' rows."""

import struct
from collections.abc import Sequence
from pathlib import Path

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "refund", "money", "moon", "star")
DIMS = 4
# Of each piece; marks do not count. Texts about money, and texts about the sky.
ROWS = ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 0), (0, 0, 0, 0), (3, 0, 0, 0), (2, 1, 0, 0), (0, 0, 3, 0), (0, 1, 2, 0))


def message(*fields: tuple[int, int | bytes | str]) -> bytes:
    """A message of Protocol Buffers."""
    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            made += varint(number << 3 | 2) + varint(len(data)) + data
    return made


def varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


def onnx(rows: Sequence[Sequence[float]] = ROWS, dims: int | None = DIMS) -> bytes:
    """A model that looks up the rows of its pieces; `dims` None: its graph does not say how long they are."""
    table = struct.pack(f"<{len(rows) * len(rows[0])}f", *(value for row in rows for value in row))
    weights = message((1, len(rows)), (1, len(rows[0])), (2, 1), (8, "rows"), (9, table))

    def tensor(name: str, kind: int, *shape: int | str) -> bytes:
        sizes = message(*((1, message((2, each) if isinstance(each, str) else (1, each))) for each in shape))
        return message((1, name), (2, message((1, message((1, kind), (2, sizes))))))

    node = message((1, "rows"), (1, "input_ids"), (2, "found"), (4, "Gather"))
    last = "dims" if dims is None else dims
    graph = message(
        (1, node), (2, "g"), (5, weights), (11, tensor("input_ids", 7, "batch", "length")),
        (12, tensor("found", 1, "batch", "length", last)),
    )  # fmt: skip
    return message((1, 8), (7, graph), (8, message((2, 13))))


def write_model(folder: Path) -> Path:
    """A folder with a model and its vocabulary."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(onnx())
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return folder
