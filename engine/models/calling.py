"""Calls of models: whose turn it is, when a call is sent again, how long it may take, and its one line in the log."""

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

import structlog
import trio

from engine.config import Config, ModelEntry, ModelsConfig
from engine.egress.redaction import Redactor
from engine.egress.rules import parse_url
from engine.egress.secrets import SecretSource
from engine.errors import Code, LimitUse, Problem
from engine.models.reserving import NOTHING, Price, added, tokens_of
from engine.models.retrying import pause_s
from engine.models.shapes import AnswerTooLarge, Event, Metered, ModelFailed, Request, Stopped, Usage
from engine.names import nearest
from engine.quota import Bucket
from engine.scheduling.places import Places, share_of

if TYPE_CHECKING:
    from engine.models.client import Sample
    from engine.models.http import Http

log = structlog.get_logger("engine.models")

# The wires that are servers.
_SERVERS = ("openai", "anthropic")


class LateAnswer(Problem):
    """`model_error` of a call that was sent and took too long: its server may charge for all that it was to answer."""


class _Late(ModelFailed):
    """The time of a call is over."""


class Wire(Protocol):
    """How requests reach a model. `url` is where they go, if a key goes along."""

    @property
    def url(self) -> str | None: ...

    def body(self, request: Request) -> bytes:
        """The whole body of a request."""
        ...

    def send(self, request: Request, key: str | None) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """One try. Raises ModelFailed."""
        ...


class _Lane:
    """The turns of one model: so many calls at once, so many requests a minute.

    Where it is `shared`, one tenant's calls have at most half of the places, and the next one is for the tenant that
    has the fewest: runs that wait for slow answers keep no other tenant waiting.
    """

    def __init__(self, entry: ModelEntry, *, shared: bool) -> None:
        self._places = Places(entry.at_once, share_of(entry.at_once, shared=shared))
        per_minute = entry.requests_per_minute
        self._bucket = None if per_minute is None else Bucket.full(per_minute / 60, per_minute, trio.current_time())

    async def enter(self, tenant: str) -> None:
        """Wait for a place, and until a request may be sent; `leave` gives the place back."""
        await self._places.acquire(tenant)
        try:
            await self.pace()
        except BaseException:
            self.leave(tenant)
            raise

    def leave(self, tenant: str) -> None:
        """A call of the tenant has ended."""
        self._places.release(tenant)

    async def pace(self) -> None:
        """Wait until a request may be sent."""
        while self._bucket is not None:
            self._bucket.refill(trio.current_time())
            if not (wait := self._bucket.wait_s()):
                self._bucket.take()
                return
            await trio.sleep(wait)


@dataclass(slots=True)
class _Served:
    """One entry, and what all of its calls share."""

    entry: ModelEntry
    wire: Wire
    lane: _Lane
    price: Price | None
    # `client`: a lane of each tenant that calls, as its clients may leave every call without an answer.
    lanes: WeakValueDictionary[str, _Lane] = field(default_factory=WeakValueDictionary)

    def of(self, tenant: str) -> "_Served":
        """What the calls of this tenant share."""
        if self.entry.api != "client":
            return self
        lane = self.lanes.get(tenant)
        if lane is None:
            lane = self.lanes[tenant] = _Lane(self.entry, shared=False)
        return replace(self, lane=lane)


@dataclass(slots=True)
class _Account:
    """What the log says of one call."""

    tries: int = 0
    outcome: str = "cancelled"
    # What was used by tries that gave nothing out, and by the one whose events were used.
    lost: Usage = NOTHING
    usage: Usage | None = None


class Models:
    """The configured models. Made by `open_models`, whose block it does not outlive."""

    # Why a tenant has none.
    missing = "no model is configured for it: it needs a table [models.NAME]"

    def __init__(self, config: Config, secrets: SecretSource, http: "Http | None" = None) -> None:
        self._http = http
        self._secrets = secrets
        self._wait_s = config.limits.queue_timeout_s
        self._served: dict[str, _Served] = {}
        self.use(config)

    async def renew(self, config: Config) -> None:
        """`use` while the event loop serves: the import of HTTP, for the first model that needs it, is in a thread."""
        if self._http is None and any(entry.api in _SERVERS for entry in config.models.entries.values()):
            await trio.to_thread.run_sync(import_module, "engine.models.http")
        self.use(config)

    def use(self, config: Config) -> None:
        """Switch to other `[models]`. Calls under way end as they began; unchanged models keep their turns."""
        self._config: ModelsConfig = config.models
        before, self._served = self._served, {}
        for name, entry in config.models.entries.items():
            kept, shared = before.get(name), config.tenants.enabled and entry.is_shared
            self._served[name] = kept if kept is not None and kept.entry == entry else self._made(entry, shared)

    def _made(self, entry: ModelEntry, shared: bool) -> _Served:
        # Each wire is imported for the first entry that has it: HTTP takes 3 MiB.
        wire: Wire
        if entry.api == "script":
            from engine.models.script import ScriptWire

            assert entry.path is not None  # validation says so
            wire = ScriptWire(entry.path)
        elif entry.api == "client":
            from engine.models.client import ClientWire

            wire = ClientWire()
        else:
            from engine.models.http import Http, HttpWire

            self._http = self._http or Http()
            wire = HttpWire(entry, self._http)
        prices = entry.price
        price = None if prices is None else Price.of(prices.input, prices.cached_input, prices.output)
        return _Served(entry, wire, _Lane(entry, shared=shared), price)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._http is not None:
            await self._http.aclose()

    def of(self, tenant: str) -> Mapping[str, ModelEntry]:
        """The tenant's models, in the order of the file."""
        return self._config.of(tenant)

    def default_of(self, tenant: str) -> str | None:
        """The name of the tenant's model where none is named."""
        return self._config.default_of(tenant)

    def priced(self, name: str) -> bool:
        """Whether a configured model has a price."""
        return self._served[name].price is not None

    def model(self, name: str, tenant: str) -> "CalledModel":
        """A model for calls of this tenant. Raises Problem not_found."""
        mine = self.of(tenant)
        if name not in mine:
            near = nearest(name, list(mine))
            hint = f"did you mean {near!r}?" if near else f"models: {', '.join(mine) or 'none'}"
            raise Problem(Code.NOT_FOUND, f"unknown model {name[:64]!r}; {hint}")
        return CalledModel(name, tenant, self._served[name].of(tenant), self._secrets, self._wait_s)


class GrantedModels(Models):
    """Of a tenant's models those that a published version was granted. It opens nothing of its own."""

    missing = "it was granted no model of yours (grants.models)"

    def __init__(self, models: Models, granted: Iterable[str]) -> None:
        self._models = models
        self._granted = frozenset(granted)

    def of(self, tenant: str) -> Mapping[str, ModelEntry]:
        return {name: entry for name, entry in self._models.of(tenant).items() if name in self._granted}

    def default_of(self, tenant: str) -> str | None:
        mine = self.of(tenant)
        usual = self._models.default_of(tenant)
        return usual if usual in mine else next(iter(mine), None)

    def priced(self, name: str) -> bool:
        return self._models.priced(name)

    def model(self, name: str, tenant: str) -> "CalledModel":
        if name not in self.of(tenant):
            raise Problem(Code.NOT_FOUND, f"the model {name[:64]!r} was not granted (grants.models)")
        return self._models.model(name, tenant)


@dataclass(frozen=True)
class CalledModel:
    """A model as one tenant calls it (`engine.models.shapes.Model`)."""

    name: str
    tenant: str
    served: _Served = field(repr=False)
    secrets: SecretSource = field(repr=False)
    wait_s: float

    @property
    def entry(self) -> ModelEntry:
        """Its configuration."""
        return self.served.entry

    def answered_by(self, sample: "Sample") -> "CalledModel":
        """This model, of `api = "client"`, as the caller behind `sample` answers it."""
        from engine.models.client import ClientWire

        return replace(self, served=replace(self.served, wire=ClientWire(sample)))

    @property
    def price(self) -> Price | None:
        """What its tokens cost, if the configuration says so."""
        return self.served.price

    @property
    def max_output_tokens(self) -> int:
        return self.entry.max_output_tokens

    def request_bytes(self, request: Request) -> int:
        return len(self.served.wire.body(request))

    def body(self, request: Request) -> bytes:
        """The body of a request as it would be sent."""
        return self.served.wire.body(request)

    @asynccontextmanager
    async def ask(
        self, request: Request, lost: Callable[[Usage], None] = lambda _: None
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """As the protocol says. Ends within `timeout_s`, its retries included."""
        began, account = trio.current_time(), _Account()
        key: str | None = None
        try:
            self._fits(request)
            key = await self._key()
            await self._enter()
            try:
                with trio.move_on_after(self.entry.timeout_s) as scope:
                    async with self._tried(request, key, account) as events:
                        yield events
            finally:
                self.served.lane.leave(self.tenant)
            if scope.cancelled_caught:
                raise _Late(f"it takes longer than {self.entry.timeout_s:g} s (timeout_s)")
        except ModelFailed as error:
            account.outcome = "output_limit" if isinstance(error, AnswerTooLarge) else "model_error"
            code = Code.OUTPUT_LIMIT if isinstance(error, AnswerTooLarge) else Code.MODEL_ERROR
            text = Redactor([key] if key else ()).text(f"model {self.name!r}: {error}")
            kind = LateAnswer if isinstance(error, _Late) and account.tries else Problem
            raise kind(code, text, retry_after_s=error.retry_after_s) from None
        except Problem as problem:
            if not account.tries:
                account.outcome = problem.code.value
            raise
        finally:
            lost(account.lost)
            usage = added(account.lost, account.usage or NOTHING)
            log.info(
                "model called", model=self.name, tenant=self.tenant, outcome=account.outcome, tries=account.tries,
                input_tokens=usage.input, cached_tokens=usage.cached, output_tokens=usage.output,
                seconds=round(trio.current_time() - began, 3),
            )  # fmt: skip

    async def _enter(self) -> None:
        """Wait for a turn, which the lane must get back. Raises Problem `queue_timeout`."""
        with trio.move_on_after(self.wait_s):
            await self.served.lane.enter(self.tenant)
            return
        raise Problem(
            Code.QUEUE_TIMEOUT,
            f"model {self.name!r}: no turn came within {self.wait_s:g} s (limits.queue_timeout_s): "
            "at_once or requests_per_minute of the model are used up",
            retry_after_s=1.0,
        )

    @asynccontextmanager
    async def _tried(self, request: Request, key: str | None, account: _Account) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of the first try that gives one. A try that fails later is not repeated: its events are used."""
        ready: list[Event] = []
        while True:
            account.tries += 1
            reported: Metered | None = None
            try:
                async with self.served.wire.send(request, key) as events:
                    while isinstance(first := await anext(events, None), Metered):
                        reported = first
                    if first is None:
                        raise ModelFailed("its answer is empty")
                    ready = [first] if reported is None else [reported, first]
                    reported = None
                    yield _Watched(ready, events, account)
                    return
            except ModelFailed as error:
                if ready:
                    raise
                failed = error
            except Problem as problem:  # a client that cannot be asked
                if not ready:
                    account.outcome = problem.code.value
                raise
            finally:
                if reported is not None:  # its server charges for what it read
                    account.lost = added(account.lost, reported.usage)
            await self._before_next_try(failed, account)

    async def _before_next_try(self, failed: ModelFailed, account: _Account) -> None:
        if not failed.again or account.tries > self.entry.retries:
            raise failed
        pause = pause_s(account.tries, failed.retry_after_s, random.random())
        if trio.current_time() + pause >= trio.current_effective_deadline():
            raise failed
        await trio.sleep(pause)
        await self.served.lane.pace()

    def _fits(self, request: Request) -> None:
        """Raises Problem `model_limit` for an input that the model could not read whole."""
        bound, tokens = self.entry.context_tokens, tokens_of(self.request_bytes(request))
        if tokens > bound:
            raise Problem(
                Code.MODEL_LIMIT,
                f"model {self.name!r}: the input has about {tokens:,} tokens; the limit is {bound:,} (context_tokens)",
                limit=LimitUse("context_tokens", bound, tokens, "count", "engine"),
            )

    async def _key(self) -> str | None:
        """The key to send. Raises Problem `unavailable`, which names the setting."""
        where = f"models.{self.name}.key"
        if (name := self.entry.secret) is None:
            return self.entry.key or None
        vault = await self.secrets.vault(self.tenant)
        secret, url = vault.secrets.get(name), self.served.wire.url
        if secret is None or url is None:
            why = vault.trouble or f"{where} names the secret {name!r}, which the tenant does not have"
            raise Problem(Code.UNAVAILABLE, f"model {self.name!r}: {why}")
        if (refused := secret.refusal(parse_url(url))) is not None:
            raise Problem(Code.UNAVAILABLE, f"model {self.name!r}: {refused} ({where})")
        value = secret.value.strip()
        if not value or not all(33 <= ord(character) <= 126 for character in value):
            raise Problem(Code.UNAVAILABLE, f"model {self.name!r}: the secret {name!r} is not a key ({where})")
        return value


class _Watched:
    """The events of an answer, as the call's account sees them."""

    def __init__(self, ready: Sequence[Event], rest: AsyncIterator[Event], account: _Account) -> None:
        self._ready = iter(ready)  # a deque takes 760 bytes
        self._rest = rest
        self._account = account

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> Event:
        event = next(self._ready, None)
        if event is None:
            event = await anext(self._rest)
        if isinstance(event, Metered | Usage):
            self._account.usage = event.usage if isinstance(event, Metered) else event
        elif isinstance(event, Stopped):
            self._account.outcome = "ok"
        return event


@asynccontextmanager
async def open_models(config: Config, secrets: SecretSource, http: "Http | None" = None) -> AsyncIterator[Models]:
    """The models of a configuration, until the end of the block. Nothing is connected before the first call."""
    models = Models(config, secrets, http)
    try:
        yield models
    finally:
        with trio.CancelScope(shield=True):  # safe to shield: close does not wait
            await models.aclose()
