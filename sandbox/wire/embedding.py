"""The wire between the supervisor and a sentence model: numbers of word pieces in, vectors out, and no text.

A model sends a frame with `Ready` once it is confined, and an `ANSWER` with the length of its vectors once it has its
weights. Then each request (`REQUEST`, a length for each text, the numbers of its pieces) has one answer: `ANSWER`,
and if that is OK as many vectors as texts.
"""

import struct
from enum import IntEnum

# How many texts; then a `LENGTH` for each, and all their pieces as little-endian 32-bit numbers.
REQUEST = struct.Struct(">H")
LENGTH = struct.Struct(">H")
# A Reason; the length of vectors, or the bytes of those that follow, as little-endian 32-bit floats; the CPU seconds
# that it took, as far as the process says.
ANSWER = struct.Struct(">BIf")

# A request takes a third of a second of CPU time: no query waits longer for one of documents.
MAX_TEXTS = 4
# What all-MiniLM-L6-v2 was trained to read, the marks of begin and end included.
MAX_PIECES = 256
MAX_DIMS = 16_384


class Reason(IntEnum):
    """How a request ended, or loading. After all but `OK` the process is of no more use."""

    OK = 0
    CHANGED = 1
    UNREADABLE = 2
    MEMORY = 3
    FAILED = 4
