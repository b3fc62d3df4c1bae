"""`GET /audit`: a tenant's own rows of the audit log, in pages from the newest to the oldest."""

import base64
import re
import secrets
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from control.records import since
from engine.errors import Code, Problem
from server.http.asgi import Exchange
from server.http.routes import Need, Route
from server.problems import Answer, json_answer

if TYPE_CHECKING:
    from agents.service import Service

MAX_ROWS = 1_000
_USUAL_ROWS = "100"
# Not longer: what is compared with the bound is the whole number.
_LIMIT = re.compile(r"[0-9]{1,9}", re.ASCII)


class Cursors:
    """Row numbers as opaque texts, which are valid until this process ends.

    The rows of all tenants share one sequence of numbers: in plain text, its own numbers would show a tenant how busy
    the others are. A cursor is one block of AES with eight zero bytes and the number: any other text decrypts to bytes
    that are not zero, and is refused.
    """

    _BLOCK = struct.Struct(">QQ")

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def text(self, number: int) -> str:
        return base64.urlsafe_b64encode(self._crypt(self._BLOCK.pack(0, number), encrypt=True)).rstrip(b"=").decode()

    def number(self, text: str) -> int:
        """Raises Problem (400) for a text that is no cursor of this process."""
        try:
            block = base64.b64decode(text + "==", altchars=b"-_", validate=True)
            zero, number = self._BLOCK.unpack(self._crypt(block, encrypt=False))
        except (ValueError, struct.error):
            zero, number = 1, 0
        if zero or number >= 2**63:
            raise Problem(
                Code.BAD_REQUEST, "before: expected the 'before' of an answer; it is valid until the server ends"
            )
        return int(number)

    def _crypt(self, block: bytes, *, encrypt: bool) -> bytes:
        # Imported here: few servers need it.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        if len(block) != self._BLOCK.size:
            raise ValueError("not one block")
        cipher = Cipher(algorithms.AES(self._key), modes.ECB())
        context = cipher.encryptor() if encrypt else cipher.decryptor()
        return context.update(block) + context.finalize()


def routes(service: "Service", now: Callable[[], float]) -> tuple[Route, ...]:
    """The one route."""
    cursors = Cursors()

    async def show(exchange: Exchange) -> Answer:
        with exchange.working():  # raises before the work if the tenant's share is used up
            params = exchange.params
            limit = params.get("limit", _USUAL_ROWS)
            if _LIMIT.fullmatch(limit) is None or not 1 <= int(limit) <= MAX_ROWS:
                raise Problem(Code.BAD_REQUEST, f"limit: expected a whole number from 1 to {MAX_ROWS}")
            start = None if "since" not in params else since(params["since"], now())
            before = None if "before" not in params else cursors.number(params["before"])
        found, older = await service.control.audit.page(
            exchange.tenant.id, limit=int(limit), before=before, since=start
        )
        with exchange.working():
            shown = [row.as_json() for row in found]
            return json_answer({"audit": shown, "before": None if older is None else cursors.text(older)})

    return (Route("GET", "/audit", Need.AUDIT, show),)
