"""What a document takes from addresses: of the hosts that its entry allows, by the rules of `allow_hosts`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from agents.chatmd.building import Content
from agents.chatmd.opening import NotFetched
from engine.egress.rules import may_connect, parse_rules, parse_url, refusal

# Imported with the first address: most documents take nothing from any.
if TYPE_CHECKING:
    from engine.egress.outbound import Outbound

# Whose connections these are: no tenant has this name, so none is shared with a script.
_OWNER = "agents.chatmd"
FETCH_S = 30.0


class Hosts:
    """Made by `open_hosts`, whose block it does not outlive. Follows no redirects."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._outbound: Outbound | None = None
        self._rules = parse_rules(tuple(allowed))

    def refusal(self, url: str) -> str | None:
        """As the protocol says."""
        try:
            why = refusal(self._rules, parse_url(url))
        except ValueError as error:
            return f"no address, and without `local` no file either: {error}"
        return None if why is None else why.replace("this script", "this document")

    async def fetch(self, url: str, max_bytes: int) -> Content:
        """As the protocol says."""
        from engine.egress.outbound import ExchangeFailed, NotPermitted, Outbound, Request, Trace

        if self._outbound is None:
            self._outbound = Outbound()
        target = parse_url(url)
        headers = {"host": target.authority, "accept-encoding": "gzip, deflate", "user-agent": "engine"}
        request = Request("GET", target, tuple((name.encode(), value.encode()) for name, value in headers.items()), b"")
        trace = Trace()
        with trio.move_on_after(FETCH_S):
            try:
                async with self._outbound.exchange(
                    _OWNER, request, lambda address: may_connect(self._rules, address, target.port), trace
                ) as answer:
                    if answer.status != 200:
                        await answer.discard()
                        moved = ", and redirects are not followed" if 300 <= answer.status < 400 else ""
                        raise NotFetched("file-missing", f"its server answers with status {answer.status}{moved}")
                    if answer.encoded:
                        raise NotFetched("file-kind", "in a coding that is not decoded (Content-Encoding)")
                    body = await answer.read(max_bytes, "limits.fs_bytes", lambda _: None)
                    return _content(bytes(body), answer.headers.get("content-type", ""))
            except NotPermitted as refused:
                raise NotFetched("file-outside", str(refused)) from None
            except ExchangeFailed as failed:
                raise NotFetched("too-large" if trace.bytes_in >= max_bytes else "file-missing", str(failed)) from None
        raise NotFetched("file-missing", f"its server takes longer than {FETCH_S:g} s")

    async def aclose(self) -> None:
        if self._outbound is not None:
            await self._outbound.aclose()


def _content(body: bytes, content_type: str) -> Content:
    from email.message import Message

    message = Message()
    message["content-type"] = content_type or "text/plain"
    return Content(body, message.get_content_type(), message.get_content_charset("utf-8"))


@asynccontextmanager
async def open_hosts(allowed: Sequence[str]) -> AsyncIterator[Hosts]:
    """What reaches the hosts of these rules and no others."""
    hosts = Hosts(allowed)
    try:
        yield hosts
    finally:
        with trio.CancelScope(shield=True):  # safe to shield: close does not wait
            await hosts.aclose()
