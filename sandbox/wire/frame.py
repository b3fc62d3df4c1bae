"""Length-prefixed frames with a maximum: four bytes, big-endian, then that many bytes of payload."""

HEADER_BYTES = 4


class FrameTooLarge(Exception):
    """The prefix announces more than the maximum. None of the payload was kept or allocated."""

    def __init__(self, length: int, maximum: int) -> None:
        super().__init__(f"frame of {length} bytes; the limit is {maximum}")


def encode_frame_head(length: int) -> bytes:
    """The prefix of a payload of this length. Raises OverflowError for 4 GiB or more."""
    return length.to_bytes(HEADER_BYTES, "big")


def encode_frame(payload: bytes) -> bytes:
    """The bytes of one frame. Raises OverflowError for a payload of 4 GiB or more."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Bytes in, payloads out, for any split of the bytes. The length is checked before the payload is stored."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        # Invariant: holds the bytes after the last whole frame: at most HEADER_BYTES + maximum, plus one feed.
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the payloads that they complete. Raises FrameTooLarge."""
        buffer = self._buffer
        if not buffer and len(data) >= HEADER_BYTES:
            length = int.from_bytes(data[:HEADER_BYTES], "big")
            if length == len(data) - HEADER_BYTES <= self.maximum:  # one whole frame, as usual: nothing to buffer
                return [data[HEADER_BYTES:]]
        buffer += data
        frames: list[bytes] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            length = int.from_bytes(buffer[start : start + HEADER_BYTES], "big")
            if length > self.maximum:
                raise FrameTooLarge(length, self.maximum)
            end = start + HEADER_BYTES + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:  # one copy of a large payload, not two
                frames.append(bytes(view[start + HEADER_BYTES : end]))
            start = end
        if start:
            del buffer[:start]
        return frames

    @property
    def idle(self) -> bool:
        """Whether no partial frame is buffered."""
        return not self._buffer
