"""Signatures of files, which change with them."""

import os
from pathlib import Path

# Modification time, size and inode number; None if the file does not exist.
Signature = tuple[int, int, int] | None
Files = dict[Path, Signature]


def signature(path: Path) -> Signature:
    """The present signature of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
