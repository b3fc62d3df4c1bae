"""Pages for connectors, and answers of embedding services: from the hosts of addresses that the operator configured."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from engine.egress.outbound import ExchangeFailed, NotPermitted, Outbound, Request, Trace
from engine.egress.rules import (
    DEFAULT_PORTS,
    Address,
    HostRule,
    Target,
    is_internal,
    may_connect,
    parse_rule,
    parse_url,
    redirected,
    refusal,
)
from knowledge.fetching import Fetched, FetchFailed

# Whose connections these are: no tenant has this name, so none is shared with a script.
_OWNER = "connectors.web"


class Fetcher:
    """Made by `open_fetcher`, whose block it does not outlive. Follows no redirects."""

    def __init__(self, outbound: Outbound, granted: Sequence[Target]) -> None:
        self._outbound = outbound
        self._rules = tuple({rule.text: rule for rule in map(_rule, granted)}.values())

    def canonical(self, url: str, base: str | None = None) -> str:
        """As the protocol says."""
        return (parse_url(url) if base is None else redirected(parse_url(base), url)).url

    def reaches(self, url: str) -> bool:
        """As the protocol says."""
        return refusal(self._rules, parse_url(url)) is None

    async def fetch(self, url: str, headers: Mapping[str, str], *, max_bytes: int, max_s: float) -> Fetched:
        """As the protocol says."""
        target = parse_url(url)
        if refusal(self._rules, target) is not None:
            raise FetchFailed("at another host, which is not among the given addresses")
        trace = Trace()
        try:
            return await self._exchange(_request("GET", target, headers), trace, max_bytes, "max_extract_bytes", max_s)
        except ExchangeFailed as error:
            raise FetchFailed(str(error), again=trace.status is None) from None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, max_bytes: int, max_s: float) -> Fetched:
        """As the protocol of `Poster` says."""
        request = _request("POST", parse_url(url), {**headers, "content-length": str(len(body))}, body)
        trace = Trace()
        try:
            return await self._exchange(request, trace, max_bytes, "as many as its vectors can have", max_s)
        except ExchangeFailed as error:  # also one that was cut off, but not one that is too large
            raise FetchFailed(str(error), again=trace.bytes_in < max_bytes) from None

    async def expire(self) -> None:
        """Close idle connections after a while. Runs until cancelled; not needed where the block ends soon."""
        await self._outbound.expire()

    async def _exchange(self, request: Request, trace: Trace, max_bytes: int, bound: str, max_s: float) -> Fetched:
        """One request and its answer. Raises FetchFailed, ExchangeFailed."""
        may_connect = self._may_connect(request.target)
        with trio.move_on_after(max_s):
            try:
                async with self._outbound.exchange(_OWNER, request, may_connect, trace) as answer:
                    if answer.status != 200:
                        await answer.discard()
                        return Fetched(answer.status, answer.headers, b"")
                    if answer.encoded:
                        raise FetchFailed("in a coding that is not decoded (Content-Encoding)")
                    body = await answer.read(max_bytes, bound, lambda _: None)
                    return Fetched(answer.status, answer.headers, body)
            except NotPermitted:
                raise FetchFailed("at an address that is never reached: link-local, or a cloud's metadata") from None
        raise FetchFailed(f"its server takes longer than {max_s:g} s", again=True)

    def _may_connect(self, target: Target) -> Callable[[Address], bool]:
        # The operator wrote the name, so it may lead into the own network. What serves secrets to any program on this
        # machine must be written as an address: the owner of a public site can change where its name leads.
        return lambda address: is_internal(address) or may_connect(self._rules, address, target.port)


def _request(method: str, target: Target, headers: Mapping[str, str], body: bytes = b"") -> Request:
    ours = {"host": target.authority, "accept-encoding": "gzip, deflate", **headers}
    return Request(method, target, tuple((name.encode(), value.encode()) for name, value in ours.items()), body)


def _rule(target: Target) -> HostRule:
    """The host of a given address: at its port, and for a standard port at both of them."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    return parse_rule(host if target.port in DEFAULT_PORTS.values() else f"{host}:{target.port}")


@asynccontextmanager
async def open_fetcher(urls: Sequence[str]) -> AsyncIterator[Fetcher]:
    """What reaches the hosts of these addresses and no others. Raises ValueError for one that is none."""
    outbound = Outbound()  # its idle connections, a few at most, are closed below: nothing needs to expire them
    try:
        yield Fetcher(outbound, [parse_url(url) for url in urls])
    finally:
        with trio.CancelScope(shield=True):  # safe to shield: close does not wait
            await outbound.aclose()
