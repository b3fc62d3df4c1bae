"""The keys of one issuer: fetched by way of the egress guard, cached, and fetched again when they change.

Requests never fetch anything themselves. A task does, at most one for each issuer; the requests that need its result
wait for it, for a bounded time.
"""

from typing import TYPE_CHECKING

import structlog
import trio

from engine.config.oauth import IssuerConfig, parse_oauth_url, refused_host
from engine.egress.rules import Target, may_connect, parse_rules
from engine.errors import Code, Problem
from server.oauth.keys import MAX_BYTES, BadKeys, KeySet, read_keys
from server.oauth.token import Token, read_object

if TYPE_CHECKING:
    import jwt

    from engine.egress.outbound import Outbound

log = structlog.get_logger("server.oauth")

# Keys of this age are fetched again when a token needs them, beside the request.
FRESH_S = 600.0
# Keys that cannot be fetched again are used until this age. Until then an issuer that is down locks no user out; after
# it a key that was withdrawn meanwhile is of no use, also to an attacker who keeps the issuer out of reach.
STALE_S = 4 * 3600.0
# An unknown kid makes the keys be fetched again at most so often, however many tokens name one.
REFETCH_S = 30.0
# The same without any keys.
RETRY_S = 5.0
# One fetch: metadata at up to three places, and the keys.
FETCH_S = 10.0
# How long a request waits for one, and how many do.
WAIT_S = 5.0
MAX_WAITING = 256

METADATA_BYTES = 64 * 1024
METADATA_VALUES = 2000


class _NotFetched(Exception):
    """Metadata or keys could not be fetched. The text says why."""


class Issuer:
    """One issuer and its keys. `open` starts the first fetch; tasks run in that nursery."""

    def __init__(self, name: str, config: IssuerConfig, outbound: "Outbound") -> None:
        self.name = name
        self.config = config
        self._outbound = outbound
        self._rules = parse_rules(config.allow_hosts)
        self._nursery: trio.Nursery | None = None
        self._keys: KeySet | None = None
        self._jwks_uri: str | None = config.jwks_uri
        self._fetched_at = self._tried_at = float("-inf")
        self._fetched: trio.Event | None = None
        self._waiting = 0
        # Why the last fetch failed; None if it did not.
        self.trouble: str | None = None

    def open(self, nursery: trio.Nursery) -> None:
        """Fetch the keys for the first time, in the background."""
        self._nursery = nursery
        self._begin(RETRY_S)

    def keys(self) -> KeySet | None:
        """The keys if they may be used now. Begins a fetch when they are no longer fresh."""
        age = trio.current_time() - self._fetched_at
        if age >= FRESH_S:
            self._begin(REFETCH_S)
        return self._keys if age < STALE_S else None

    async def find(self, token: Token, *, wait: bool) -> "jwt.PyJWK | None":
        """The key that a token names; None if its issuer has no such key. Raises Problem `unavailable` without keys.

        Without `wait` only keys that are there count.
        """
        keys = self.keys()
        found = None if keys is None else keys.find(token.kid, token.algorithm)
        if found is not None or not wait:
            return found
        if self._begin(RETRY_S if keys is None else REFETCH_S):
            await self._wait()
            keys = self.keys()
        if keys is None:
            why = f"the keys of the issuer {self.name} cannot be fetched at present"
            raise Problem(Code.UNAVAILABLE, why, retry_after_s=RETRY_S)
        return keys.find(token.kid, token.algorithm)

    async def check(self) -> str | None:
        """Why the keys cannot be fetched, when the fetch in progress has ended; None if they are there."""
        if self._fetched is not None:
            await self._fetched.wait()
        return self.trouble

    async def _wait(self) -> None:
        fetched = self._fetched
        if fetched is None or self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            with trio.move_on_after(WAIT_S):
                await fetched.wait()
        finally:
            self._waiting -= 1

    def _begin(self, pause_s: float) -> bool:
        """Begin a fetch, unless the last one began less than `pause_s` ago. Returns whether one is in progress."""
        if self._fetched is not None:
            return True
        now = trio.current_time()
        if self._nursery is None or now < self._tried_at + pause_s:
            return False
        self._tried_at, self._fetched = now, trio.Event()
        self._nursery.start_soon(self._fetch, self._fetched)
        return True

    async def _fetch(self, fetched: trio.Event) -> None:
        from engine.egress.outbound import ExchangeFailed

        began = trio.current_time()
        try:
            with trio.fail_after(FETCH_S):
                if self._jwks_uri is None:
                    self._jwks_uri = await self._discover()
                keys = read_keys(await self._get(self._jwks_uri, MAX_BYTES))
        except (ExchangeFailed, _NotFetched, BadKeys) as error:
            self._failed(str(error))
        except trio.TooSlowError:
            self._failed(f"no complete answer within {FETCH_S:g} s")
        else:
            if self._keys is None or self._keys.digest != keys.digest:
                log.info("the keys of an issuer have changed", issuer=self.name, keys=len(keys))
                self._keys = keys
            # The age counts from the question: the answer is no newer.
            self._fetched_at, self.trouble = began, None
        finally:
            self._fetched = None
            fetched.set()

    def _failed(self, reason: str) -> None:
        self._jwks_uri, self.trouble = self.config.jwks_uri, reason  # the place may be another one by now
        log.warning("the keys of an issuer cannot be fetched", issuer=self.name, reason=reason)

    async def _discover(self) -> str:
        """Where the keys are, by the issuer's metadata (RFC 8414 section 3, OpenID Connect Discovery 1.0 section 4)."""
        reasons = []
        for url in metadata_urls(self.config.issuer):
            try:
                metadata = read_object(await self._get(url, METADATA_BYTES), METADATA_VALUES)
            except (_NotFetched, ValueError) as error:
                reasons.append(f"{url}: {error}")
                continue
            # RFC 8414 section 3.3: else another issuer's metadata could be put in the place of this one's.
            if metadata.get("issuer") != self.config.issuer:
                raise _NotFetched(f"{url}: its issuer is not {self.config.issuer}")
            found = metadata.get("jwks_uri")
            if not isinstance(found, str):
                raise _NotFetched(f"{url}: it has no jwks_uri")
            return found
        raise _NotFetched("no metadata: " + "; ".join(reasons))

    async def _get(self, url: str, max_bytes: int) -> bytes:
        """The body at a URL. No redirect is followed, as it would lead to a host that was not configured."""
        from engine.egress.outbound import Request, Trace

        target = self._target(url)
        headers = {"host": target.authority, "accept": "application/json", "user-agent": "engine"}
        request = Request("GET", target, tuple((k.encode(), v.encode("ascii")) for k, v in headers.items()), b"")
        trace, failed = Trace(), True
        try:
            async with self._outbound.exchange(
                f":oauth:{self.name}",  # no tenant has such a name
                request,
                lambda address: may_connect(self._rules, address, target.port),
                trace,
            ) as answer:
                if answer.status != 200:
                    await answer.discard()
                    raise _NotFetched(f"the answer has status {answer.status}")
                if answer.encoded:
                    raise _NotFetched("the answer has a coding that was not asked for")
                body = bytes(await answer.read(max_bytes, "of [tenants.oauth]", lambda size: None))
                failed = False
                return body
        finally:
            log.info(
                "egress", issuer=self.name, host=target.host, port=target.port, address=trace.address,
                status=trace.status, bytes_in=trace.bytes_in, failed=failed,
            )  # fmt: skip

    def _target(self, url: str) -> Target:
        try:
            target = parse_oauth_url(url)
        except ValueError as error:
            raise _NotFetched(f"expected {error}") from None
        if (refused := refused_host(self.config, target)) is not None:
            raise _NotFetched(refused)
        return target


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where an issuer's metadata may be, in the order of the MCP specification."""
    target = parse_oauth_url(issuer)
    origin, path = target.url.removesuffix(target.path), target.path.rstrip("/")
    well_known = (f"{origin}/.well-known/oauth-authorization-server{path}",)
    if path:
        return (*well_known, f"{origin}/.well-known/openid-configuration{path}",
                f"{origin}{path}/.well-known/openid-configuration")  # fmt: skip
    return (*well_known, f"{origin}/.well-known/openid-configuration")
