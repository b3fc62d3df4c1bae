"""Libraries in C for scripts: calls that the worker answers itself, inside its own confinement and limits.

A script's request comes out of its Lua state as bytes, as a host call does, and the answer goes in as bytes. It never
leaves the process: what parses it is confined, killed at the CPU limit of the run and measured with its memory, and no
host call is counted. One file a library; `NATIVES` is the one list. Names have a colon, which no host call's has.
"""

from collections.abc import Callable, Mapping

from sandbox.natives import clock, files, gzip, hashes, html, regex, yaml
from sandbox.natives.refused import Refused

Native = Callable[[bytes], bytes]

NATIVES: Mapping[bytes, Native] = {
    b"clock:now": clock.now,
    b"gzip:compress": gzip.compress,
    b"gzip:decompress": gzip.decompress,
    **hashes.HASHES,
    b"html:select": html.select,
    b"html:text": html.text,
    b"regex:matches": regex.matches,
    b"regex:replace": regex.replace,
    b"require:code": files.NONE.code,  # replaced for a script that requires files
    b"time:offset": clock.offset,
    b"yaml:parse": yaml.parse,
}


def natives(library: Native) -> Mapping[bytes, Native]:
    """All that a worker answers. `library` has the code of the libraries that are loaded whole, by name."""
    return {**NATIVES, b"library:code": library}


def answer(native: Native, arguments: bytes) -> tuple[bool, bytes]:
    """Whether it succeeded, and its answer or the text of the error that the script gets."""
    try:
        return True, native(arguments)
    except Refused as refused:
        return False, str(refused).encode("utf-8", "replace")
    except MemoryError:
        return False, b"more memory is needed than the worker may have"
    except Exception:  # what a library raises beside its own errors: the worker's state is not affected
        return False, b"internal error of the engine"


def warm_up() -> None:
    """In the zygote: what opens files on its first use, or would be allocated in every worker."""
    clock.warm_up()
    gzip.decompress(bytes([0] * 7 + [1]) + gzip.compress(b"a"))
    hashes.warm_up()
    html.warm_up()
    regex.warm_up()
    yaml.warm_up()


def forget() -> None:
    """A run has ended: nothing of it stays."""
    clock.forget()
    regex.forget()
