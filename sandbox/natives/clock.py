"""The clock with its fraction, and zones by name: what Lua's `os` lacks."""

import io
import os
import struct
import time
from datetime import datetime
from importlib.machinery import PathFinder
from pathlib import Path

from sandbox.natives.refused import Refused

# Else `zoneinfo` loads a module of half a megabyte to know where zones are; here they come from `tzdata`.
os.environ.setdefault("PYTHONTZPATH", "")
from zoneinfo import ZoneInfo

# The files of the zones by name: read ahead, as a worker reads none. Half a megabyte, shared by all workers.
_FILES: dict[str, bytes] = {}
_zones: dict[str, ZoneInfo] = {}


def now(arguments: bytes) -> bytes:
    """Seconds since 1970, as a double."""
    return struct.pack(">d", time.time())


def offset(arguments: bytes) -> bytes:
    """How many seconds a zone is ahead of UTC: a time as a double, then the name of the zone."""
    (at,) = struct.unpack_from(">d", arguments)
    name = arguments[8:].decode("utf-8", "replace")
    zone = _zones.get(name)
    if zone is None:
        found = _FILES.get(name)
        if found is None:
            raise Refused(
                f"there is no zone {name!r}; zones are UTC, offsets such as +02:00 and names such as Europe/Berlin"
            )
        zone = _zones[name] = ZoneInfo.from_file(io.BytesIO(found), key=name)
    try:
        ahead = datetime.fromtimestamp(at, zone).utcoffset()
    except (ValueError, OverflowError):
        raise Refused("the time is outside of the years 1 to 9999 in this zone") from None
    return struct.pack(">i", 0 if ahead is None else int(ahead.total_seconds()))


def warm_up() -> None:
    """Read the zones of the `tzdata` package."""
    spec = PathFinder.find_spec("tzdata")
    assert spec is not None
    assert spec.origin is not None
    same: dict[bytes, bytes] = {}
    folder = os.open(Path(spec.origin).parent / "zoneinfo", os.O_PATH)
    for name in (Path(spec.origin).parent / "zones").read_text().split():
        # 600 files: 3 ms of each start of a zygote; 13 by Path.read_bytes.
        with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb", buffering=0) as file:
            content = file.read()
        _FILES[name] = same.setdefault(content, content)
    os.close(folder)
    offset(struct.pack(">d", 0) + b"Europe/Berlin")
    forget()


def forget() -> None:
    """Drop the zones of the run that ended."""
    _zones.clear()
