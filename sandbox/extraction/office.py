"""What the formats of Office share: a zip of parts, looked at before a library unpacks any."""

import io
import zipfile

from sandbox.extraction.text import Refused
from sandbox.wire.extraction import Reason

# What a file may unpack to, and of how many parts: libraries unpack all of them at once.
MAX_UNPACKED_BYTES = 256 << 20
MAX_PARTS = 20_000

# The containers of Office before 2007, and of encrypted files since.
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def check(data: bytes) -> None:
    """Raises Refused for a file that is no zip, is encrypted, or unpacks to too much."""
    if data.startswith(_COMPOUND):
        raise Refused(Reason.ENCRYPTED if _ENCRYPTED in data else Reason.OTHER)
    try:
        parts = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, OverflowError):
        raise Refused(Reason.DAMAGED) from None
    if any(part.flag_bits & 1 for part in parts):
        raise Refused(Reason.ENCRYPTED)
    if len(parts) > MAX_PARTS or sum(part.file_size for part in parts) > MAX_UNPACKED_BYTES:
        raise Refused(Reason.INFLATES)
