"""gzip and zlib in C, with a bound on what a decompression makes."""

import struct
import zlib

from sandbox.natives.refused import Refused

_GZIP, _GZIP_OR_ZLIB = 31, 47  # zlib.h, deflateInit2 and inflateInit2: windowBits


def compress(data: bytes) -> bytes:
    """The data as gzip, without a name and a time: the same for the same data."""
    made = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    return made.compress(data) + made.flush()


def decompress(arguments: bytes) -> bytes:
    """Of gzip (of several members, too) or zlib: the bound in bytes (64 bits), then the data."""
    (most,) = struct.unpack_from(">Q", arguments)
    parts: list[bytes] = []
    data, left = arguments[8:], most
    try:
        while data or not parts:
            member = zlib.decompressobj(_GZIP_OR_ZLIB)
            part = member.decompress(data, left + 1)
            left -= len(part)
            if left < 0:
                raise Refused(f"the data holds more than {most} bytes; max_bytes in the options is the bound")
            if not member.eof:
                raise Refused("the data ends too soon")
            parts.append(part)
            data = member.unused_data.lstrip(b"\0")  # padding, as gzip(1) takes it
    except zlib.error as error:
        raise Refused(f"the data is neither gzip nor zlib, or is damaged: {str(error)[:100]}") from None
    return b"".join(parts)
