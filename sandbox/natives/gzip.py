"""gzip and zlib in C, with a bound on what a decompression makes."""

import re
import struct
import zlib

from sandbox.natives.refused import Refused

# Bytes given to zlib at once: it copies those that follow the end of a member, and members may have 20 bytes.
_STEP = 4096
# What may follow a member, as gzip(1) takes it.
_PADDING = re.compile(rb"\0*")
_GZIP, _GZIP_OR_ZLIB = 31, 47  # zlib.h, deflateInit2 and inflateInit2: windowBits


def compress(data: bytes) -> bytes:
    """The data as gzip, without a name and a time: the same for the same data."""
    made = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    return made.compress(data) + made.flush()


def decompress(arguments: bytes) -> bytes:
    """Of gzip (of several members, too) or zlib: the bound in bytes (64 bits), then the data."""
    (most,) = struct.unpack_from(">Q", arguments)
    parts: list[bytes] = []
    at, end, left = 8, len(arguments), most
    try:
        while at < end or not parts:
            member = zlib.decompressobj(_GZIP_OR_ZLIB)
            while not member.eof:
                data = arguments[at : at + _STEP]
                if not data:
                    raise Refused("the data ends too soon")
                parts.append(member.decompress(data, left + 1))
                left -= len(parts[-1])
                if left < 0:
                    raise Refused(f"the data holds more than {most} bytes; max_bytes in the options is the bound")
                at += len(data)
            at = _PADDING.match(arguments, at - len(member.unused_data)).end()  # type: ignore[union-attr]
    except zlib.error as error:
        raise Refused(f"the data is neither gzip nor zlib, or is damaged: {str(error)[:100]}") from None
    return b"".join(parts)
