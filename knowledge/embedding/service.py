"""Embedders at a service: batches over HTTP, retried with growing pauses, and answers checked before they are used."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec
import trio

from knowledge.embedding import EmbeddingError, Model
from knowledge.fetching import Fetched, FetchFailed, Poster
from storage.metering import in_thread

# Numbers in one answer: read in a thread, which holds the interpreter for 10 ms.
MAX_NUMBERS = 128 * 1024
# A number as JSON has 24 characters at most, and some services put each on a line of its own.
_BYTES_OF_A_NUMBER = 40
_BYTES_BESIDE = 64 * 1024
# Pauses before another try: 1, 2, 4 ... seconds, or as long as the service says.
_FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
# What another try may answer: too many requests, time-outs, and faults of the server.
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)

_MEANINGS = {
    400: "it refuses the request: does it have this model, and vectors of this dimension?",
    401: "it refuses the key",
    403: "it refuses the key",
    404: "it has no such model, or the address is another one",
    429: "it has had too many requests",
}

# From the body of an answer and the number of texts: a row of numbers for each text, in order. Raises ValueError.
Read = Callable[[bytes, int], Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one service: where it is, the most texts of a request, and how patient its clients are."""

    url: str
    batch_size: int = 64
    max_retries: int = 5
    timeout_s: float = 30.0
    key: str | None = field(default=None, repr=False)


class ServiceEmbedder:
    """An `Embedder` that asks a service; what it sends and reads is in a file for each kind of service.

    `named` is what errors call it. Raises EmbeddingError; no text of an answer, and no key, is in an error.
    """

    def __init__(
        self, named: str, model: Model, settings: Settings, poster: Poster, fields: Mapping[str, object], read: Read
    ) -> None:
        self._named, self._model, self._settings, self._poster = named, model, settings, poster
        self._fields, self._read = fields, read
        # So many texts at once that an answer has not more than MAX_NUMBERS.
        self._at_once = max(1, min(settings.batch_size, MAX_NUMBERS // model.dims))

    @property
    def model(self) -> Model:
        return self._model

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """As `Embedder`. Tries again only where the caller's time allows for another whole try."""
        found: list[bytes] = []
        for start in range(0, len(texts), self._at_once):
            found += await self._batch(texts[start : start + self._at_once])
        await trio.lowlevel.checkpoint()
        return found

    async def _batch(self, texts: Sequence[str]) -> list[bytes]:
        body = msgspec.json.encode({**self._fields, "input": list(texts)})
        pause = _FIRST_PAUSE_S
        for remaining in range(self._settings.max_retries, -1, -1):
            asked: float | None = None
            try:
                answer = await self._post(body, len(texts))
            except FetchFailed as error:
                reason, again = f"no answer of {self._named}: {error}", error.again
            else:
                if answer.status == 200:
                    return await in_thread(self._vectors, bytes(answer.body), len(texts))
                meaning = _MEANINGS.get(answer.status)
                reason = f"{self._named} answered with status {answer.status}" + (f": {meaning}" if meaning else "")
                again, asked = answer.status in _AGAIN, _retry_after(answer)
            wait = min(MAX_PAUSE_S, pause if asked is None else asked)
            left = trio.current_effective_deadline() - trio.current_time()
            # A search waits for two seconds: it answers by words now rather than after a pause.
            if not (again and remaining) or left < wait + self._settings.timeout_s:
                break
            await trio.sleep(wait)
            pause *= 2
        raise EmbeddingError(reason)

    async def _post(self, body: bytes, count: int) -> Fetched:
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._settings.key is not None:
            headers["authorization"] = f"Bearer {self._settings.key}"
        most = count * self._model.dims * _BYTES_OF_A_NUMBER + _BYTES_BESIDE
        return await self._poster.post(
            self._settings.url, headers, body, max_bytes=most, max_s=self._settings.timeout_s
        )

    def _vectors(self, body: bytes, count: int) -> list[bytes]:
        from knowledge.embedding.arrays import np, packed_rows  # numpy, which is loaded with the first vector

        try:
            rows = self._read(body, count)
        except (msgspec.MsgspecError, RecursionError):
            raise EmbeddingError(f"{self._named} answered with what is no list of vectors") from None
        except ValueError as error:
            raise EmbeddingError(f"{self._named} {error}") from None
        if len(rows) != count:
            raise EmbeddingError(f"{self._named} answered {len(rows)} vectors for {count} texts")
        if other := next((len(row) for row in rows if len(row) != self._model.dims), None):
            said = f"{self._named} answered vectors of {other} dimensions; [embedding] dims is {self._model.dims}"
            raise EmbeddingError(said)
        with np.errstate(over="ignore"):  # a number that is too large for a single one becomes infinite
            found = np.array(rows, np.float32).reshape(count, self._model.dims)
        if not np.isfinite(found).all():
            raise EmbeddingError(f"{self._named} answered a vector with a number that is not finite")
        lengths = np.linalg.norm(found.astype(np.float64), axis=1)
        if not (lengths > 0).all():
            raise EmbeddingError(f"{self._named} answered a vector of zeros")
        return packed_rows((found / lengths[:, None]).astype(np.float32))


def _retry_after(answer: Fetched) -> float | None:
    """The seconds of `Retry-After` (RFC 9110 section 10.2.3); None without a readable one."""
    said = answer.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(said):
        return float(said)
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # TypeError: a date without a zone
        return None
