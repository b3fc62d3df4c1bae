"""`require`: the code of the files of the running script's package, as text until a run has loaded them."""

from collections.abc import Iterable

from sandbox.natives.refused import Refused

# Where bytecode begins; no text is loaded that begins so (`engine/bundle.py` refuses it, too).
_ESCAPE = b"\x1b"
# The most names that an error lists.
_LISTED = 8


class Files:
    """The files of one script, by their names from the package's folder. Kept with the script in a worker's cache.

    `codes` are their texts, or what the worker has compiled.
    """

    def __init__(self, texts: Iterable[tuple[str, bytes]]) -> None:
        self.codes = {name.encode(): text for name, text in texts}
        self.size = sum(map(len, self.codes.values()))
        self._texts = set(self.codes)
        # Those of them that were loaded since the last call of `used`.
        self._used: set[bytes] = set()

    def code(self, name: bytes) -> bytes:
        """The code of one file, which the running script loads. Raises Refused."""
        code = self.codes.get(name)
        if code is None:
            raise Refused(self._missing())
        if name in self._texts:
            if code.startswith(_ESCAPE):
                raise Refused("the file is Lua bytecode; only source is accepted")
            self._used.add(name)
        return code

    def used(self) -> Iterable[bytes]:
        """The files that the last run has loaded as text."""
        used, self._used = self._used, set()
        return used

    def put(self, name: bytes, bytecode: bytes) -> None:
        """What a file compiles to."""
        self.codes[name] = bytecode
        self._texts.discard(name)

    def _missing(self) -> str:
        names = [f"./{name.decode()}" for name in sorted(self.codes)]
        there = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
        return (
            "only files that a call in the script's text names can be required, and "
            f"{f'those are {there}' if names else 'it names none'} (docs/scripting/require.md)"
        )


NONE = Files(())
