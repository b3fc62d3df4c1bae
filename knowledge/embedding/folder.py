"""A sentence model in a folder: `model.onnx` beside its vocabulary. What they say is read without running anything."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knowledge.embedding import Model
from knowledge.embedding.sentence import BEGIN, END
from knowledge.embedding.wordpiece import UNKNOWN

WEIGHTS, LIST, TOKENIZER, SETTINGS = "model.onnx", "vocab.txt", "tokenizer.json", "tokenizer_config.json"
POOLING = "1_Pooling/config.json"
# Larger ones take minutes a text on a processor.
MAX_WEIGHTS_BYTES = 2 << 30
MAX_VOCABULARY_BYTES = 32 << 20
_MAX_DIMS = 16_384
# The way to the shape of the first output in ONNX, as fields of Protocol Buffers: the graph, its outputs, the type, its
# tensor, the shape, the dimensions, and the number of one.
_GRAPH, _OUTPUT, _TYPE, _TENSOR, _SHAPE, _DIM, _VALUE = 7, 12, 2, 1, 2, 1, 1


@dataclass(frozen=True, slots=True)
class Folder:
    """The model, the file of its weights and their size, and its vocabulary in the order of its numbers."""

    model: Model
    file: Path
    size: int
    vocabulary: tuple[str, ...]


def read_folder(folder: Path, dims: int | None) -> Folder:
    """The model in `folder`. `dims` is for a graph that does not say how long its vectors are.

    Blocks for a second for each GB. Raises ValueError, a sentence about the folder.
    """
    file = folder / WEIGHTS
    data = _bytes(file, MAX_WEIGHTS_BYTES)
    try:
        said = _dims(memoryview(data))
    except (IndexError, ValueError):
        raise ValueError(f"{WEIGHTS} is no model in ONNX") from None
    if said is not None and dims is not None and said != dims:
        raise ValueError(f"{WEIGHTS} makes vectors of {said} numbers; [embedding] dims is {dims}")
    found = said or dims
    if found is None:
        raise ValueError(f"{WEIGHTS} does not say how long its vectors are; set [embedding] dims")
    if found > _MAX_DIMS:
        raise ValueError(f"{WEIGHTS} makes vectors of {found} numbers; {_MAX_DIMS} are possible")
    vocabulary = _vocabulary(folder)
    if missing := [piece for piece in (BEGIN, END, UNKNOWN) if piece not in vocabulary]:
        raise ValueError(f"the vocabulary has no {' and no '.join(missing)}")
    if (folder / POOLING).exists() and _object(folder / POOLING).get("pooling_mode_mean_tokens") is False:
        raise ValueError(f"{POOLING}: its vectors are not the mean of those of the pieces, which alone is supported")
    # The weights are the model: what the folder is called, and where it is, may change.
    return Folder(Model("path", found, hashlib.sha256(data).hexdigest()), file, len(data), tuple(vocabulary))


def _bytes(file: Path, most: int) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(most + 1)
    except OSError as error:
        raise ValueError(f"{file.name} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise ValueError(f"{file.name} is larger than {most >> 20} MiB")
    return data


def _vocabulary(folder: Path) -> list[str]:
    """The pieces of `vocab.txt`, else of `tokenizer.json`."""
    if (folder / LIST).exists():
        if (folder / SETTINGS).exists() and _object(folder / SETTINGS).get("do_lower_case") is False:
            raise ValueError(f"{SETTINGS}: the model tells upper case from lower case, which is not supported")
        return _text(folder / LIST).removesuffix("\n").split("\n")
    if not (folder / TOKENIZER).exists():
        raise ValueError(f"neither {LIST} nor {TOKENIZER} is there")
    tokenizer = _object(folder / TOKENIZER)
    model, normalizer = tokenizer.get("model"), tokenizer.get("normalizer")
    pieces = model.get("vocab") if isinstance(model, dict) and model.get("type") == "WordPiece" else None
    if not isinstance(pieces, dict) or sorted(map(str, pieces.values())) != sorted(map(str, range(len(pieces)))):
        raise ValueError(f"{TOKENIZER} has no vocabulary of WordPiece, which alone is supported")
    if isinstance(normalizer, dict) and normalizer.get("lowercase") is False:
        raise ValueError(f"{TOKENIZER}: the model tells upper case from lower case, which is not supported")
    return sorted(pieces, key=pieces.__getitem__)


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(file))
    except (ValueError, RecursionError):
        raise ValueError(f"{file.name} is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} is no object")
    return found


def _text(file: Path) -> str:
    try:
        return _bytes(file, MAX_VOCABULARY_BYTES).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{file.name} is not UTF-8") from None


# ---- the shape of the output ----------------------------------------------------------------------------------------


def _dims(data: memoryview) -> int | None:
    """The last dimension of the graph's first output; None where that is not fixed. Raises ValueError, IndexError."""
    graph = _first(data, _GRAPH)
    if graph is None:
        raise ValueError("no graph")
    at: memoryview | None = graph
    for number in (_OUTPUT, _TYPE, _TENSOR, _SHAPE):
        at = None if at is None else _first(at, number)
    last = None if at is None else [value for number, value in _fields(at) if number == _DIM][-1:]
    if not last or not isinstance(last[0], memoryview):
        return None
    return next((value for number, value in _fields(last[0]) if number == _VALUE and isinstance(value, int)), None)


def _first(data: memoryview, wanted: int) -> memoryview | None:
    return next((value for number, value in _fields(data) if number == wanted and isinstance(value, memoryview)), None)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message by number: whole numbers, and what has a length. The others are passed over."""
    place = 0
    while place < len(data):
        tag, place = _number(data, place)
        match tag & 7:
            case 0:
                value, place = _number(data, place)
                yield tag >> 3, value
            case 1 | 5 as kind:
                place += 8 if kind == 1 else 4
            case 2:
                size, place = _number(data, place)
                if size > len(data) - place:
                    raise ValueError("cut off")
                yield tag >> 3, data[place : place + size]
                place += size
            case _:
                raise ValueError("no field")


def _number(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("no number")
