"""An empty, read-only root in a mount namespace of its own: no path leads to a file any more (pivot_root(2)).

Entered by the zygote after imports and warm-up, since no file can be opened afterwards.
"""

import errno
import os

from sandbox.confine import libc
from sandbox.confine.plan import FleetPlan

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
MNT_DETACH = 2
CLONE_NEWNS = 0x00020000
_SEALED = MS_NOSUID | MS_NODEV | MS_NOEXEC


def apply(plan: FleetPlan) -> str:
    """Replace the root by an empty file system and detach the old one. Raises OSError (EPERM: forbidden)."""
    # A namespace of our own: pivot_root would replace the launcher's root, too, and it must still remove the cgroup.
    libc.unshare(CLONE_NEWNS)
    libc.mount(None, "/", None, MS_REC | MS_PRIVATE)
    place = next(path for path in ("/tmp", "/mnt", "/var") if os.path.isdir(path))
    libc.mount("none", place, "tmpfs", _SEALED, "size=4k,nr_inodes=1,mode=0555")
    os.chdir(place)
    # Both roots in one place: the new one ends on top, and the old one below is unmounted (pivot_root(2), NOTES).
    libc.pivot_root(".", ".")
    libc.umount(".", MNT_DETACH)
    os.chdir("/")
    libc.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | _SEALED)
    if os.listdir("/"):
        raise OSError(errno.ENOTEMPTY, "the new root is not empty")
    return "empty and read-only"
