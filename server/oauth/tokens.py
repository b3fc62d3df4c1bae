"""Who sends a request with a token of an issuer: read, verified once, cached until it expires."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from control.identity import Identity
from engine.config.oauth import OAuthConfig
from engine.errors import Code, LimitUse, Problem, ungrouped
from server.oauth.attempts import PER_ADDRESS, Attempts
from server.oauth.claims import Grant, read_claims
from server.oauth.issuers import Issuer
from server.oauth.keys import verify
from server.oauth.token import Reason, Refused, Token, read_token

if TYPE_CHECKING:
    from control.logins import Logins
    from engine.egress.outbound import Outbound

log = structlog.get_logger("server.oauth")

# Verified tokens that are cached. One more costs a verification each time that it is sent.
MAX_CACHED = 16_384


@dataclass(frozen=True, slots=True)
class _Verified:
    """A token whose signature was right by the keys with this digest."""

    grant: Grant
    keys: bytes


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a token, and the CPU seconds that it took to find out."""

    identity: Identity
    cpu_s: float = 0.0


class Tokens:
    """The tokens of one server. Made by `open_tokens`."""

    def __init__(
        self,
        config: OAuthConfig,
        logins: "Logins",
        issuers: tuple[Issuer, ...],
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.issuers = {issuer.config.issuer: issuer for issuer in issuers}
        self._logins = logins
        self._clock = clock
        self._attempts = Attempts(trio.current_time())
        # By the digest of the token. The tenant, and the times, are checked with every request.
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    async def authenticate(self, text: str, address: str) -> Sender:
        """The sender of a token from this address.

        Raises Refused, or Problem: rate_limited above the rate of tokens that give no access, unavailable while its
        issuer's keys cannot be fetched.
        """
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        grant = self._cached(digest)
        cpu_s = 0.0
        if grant is None:
            if not self._attempts.allowed(address, trio.current_time()):
                raise _too_many()
            try:
                grant, cpu_s = await self._verify(text, digest)
            except (Refused, Problem) as error:  # a Problem: the issuer's keys are missing, and the token was parsed
                self._attempts.count(address, trio.current_time())
                if isinstance(error, Refused):
                    log.debug("a token is refused", reason=error.reason.name, detail=error.detail)
                raise
        return Sender(await self._sender(grant), cpu_s)

    async def valid(self, text: str) -> bool:
        """Whether a token that was accepted still is, by the keys that are here. Raises Problem `unavailable`."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        try:
            grant = self._cached(digest)
            if grant is None:
                grant, _ = await self._verify(text, digest, wait=False)
            await self._sender(grant)
        except Refused:
            return False
        return True

    async def _sender(self, grant: Grant) -> Identity:
        grant.check_time(self._clock())
        identity = await self._logins.identity(grant.issuer, grant.tenant, grant.key, grant.scopes, grant.labels)
        if identity is None:
            raise Refused(Reason.TENANT, grant.tenant)
        return identity

    def _cached(self, digest: bytes) -> Grant | None:
        """What a token grants if it was verified with the present keys of its issuer: a key that an issuer withdraws
        takes the tokens that it signed with it.
        """
        verified = self._verified.get(digest)
        if verified is None:
            return None
        issuer = self.issuers[self.config.issuers[verified.grant.issuer].issuer]
        keys = issuer.keys()
        if keys is None or keys.digest != verified.keys:
            del self._verified[digest]
            return None
        self._verified.move_to_end(digest)
        return verified.grant

    async def _verify(self, text: str, digest: bytes, *, wait: bool = True) -> tuple[Grant, float]:
        began_s = time.thread_time()
        token = read_token(text)
        issuer = self.issuers.get(token.issuer)
        if issuer is None or token.algorithm not in issuer.config.algorithms:
            raise Refused(Reason.FORGED, "no such issuer, or not its algorithm")
        cpu_s = time.thread_time() - began_s
        key = await issuer.find(token, wait=wait)
        keys = issuer.keys()
        if key is None or keys is None:
            raise Refused(Reason.FORGED, "its issuer has no such key")
        began_s = time.thread_time()
        verify(token, key)
        grant = self._grant(issuer, token)
        self._verified[digest] = _Verified(grant, keys.digest)
        if len(self._verified) > MAX_CACHED:
            self._verified.popitem(last=False)
        return grant, cpu_s + time.thread_time() - began_s

    def _grant(self, issuer: Issuer, token: Token) -> Grant:
        """What the claims of a verified token grant. Its sender, and the operator by the log, learn what is wrong."""
        try:
            grant = read_claims(issuer.name, issuer.config, self.config.audience(issuer.config), token.claims)
            grant.check_time(self._clock())
        except Refused as refused:
            log.info(
                "a token of an issuer is refused", issuer=issuer.name, reason=refused.reason.name, detail=refused.detail
            )
            raise
        return grant


def _too_many() -> Problem:
    use = LimitUse("refused_tokens_per_second", PER_ADDRESS, PER_ADDRESS, "count", "engine")
    why = "too many tokens that give no access came from this address, or from all"
    return Problem(Code.RATE_LIMITED, why, limit=use, retry_after_s=1)


@asynccontextmanager
async def open_tokens(
    config: OAuthConfig,
    logins: "Logins",
    *,
    clock: Callable[[], float] = time.time,
    outbound: "Outbound | None" = None,
) -> AsyncIterator[Tokens]:
    """The tokens of a configuration's issuers, for as long as the block lasts. Their keys are fetched meanwhile."""
    if outbound is None:
        from engine.egress.outbound import Outbound

        outbound = Outbound()
    try:
        with ungrouped():
            async with trio.open_nursery() as nursery:
                issuers = tuple(Issuer(name, issuer, outbound) for name, issuer in config.issuers.items())
                nursery.start_soon(outbound.expire)
                for issuer in issuers:
                    issuer.open(nursery)
                yield Tokens(config, logins, issuers, clock)
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):  # a close waits for no peer
            await outbound.aclose()
