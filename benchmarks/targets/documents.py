"""The documents that scenarios search when they run directly in a pool: synthetic, and the same every time.

Some 60 of 2 to 4 KB in the three sources that `incident` searches, in the shape of a small company's runbooks.
"""

import hashlib
import random
from collections.abc import Iterator

from knowledge.chunking import split
from knowledge.store import Batch, NewDocument

SERVICES = (
    "payments-api", "checkout", "ledger", "search-index", "notifications", "auth-gateway", "inventory", "reporting",
    "mail-relay", "image-resizer",
)  # fmt: skip

_KINDS = {
    "filesystem:runbooks": (
        "incident runbook: latency",
        "incident runbook: card declines",
        "incident runbook: restart",
    ),
    "filesystem:postmortems": ("root cause of the spring outage", "root cause of the lost messages"),
    "filesystem:adrs": ("decision: one queue a tenant",),
}
_SENTENCES = (
    "Look at the dashboard of {s} before anything else, and note the time of the first alert.",
    "Ask in the channel of {s} who deployed last, and roll back before searching for the cause.",
    "The connection pool of {s} is small on purpose; raising it moves the queue into the database.",
    "A rise in p99 without a rise in traffic is most often a lock that a report holds.",
    "When {s} answers 429, its callers must back off; those that retry at once are the incident.",
    "The replica lags by minutes after an index build, and reads from it are stale until then.",
    "Declare the incident early: a page that turns out to be nothing costs less than an hour of silence.",
    "The root cause was a timeout longer than the caller's own, so that work went on for requests that had ended.",
    "It was decided to keep the write path of {s} synchronous, as a lost write is worse than a slow one.",
    "Check the certificates of the mail relay; they expire on the last Sunday of the quarter.",
)

# The engine's default size of chunks ([chunking] max_tokens).
_MAX_TOKENS = 200


def batches() -> Iterator[Batch]:
    """All documents, one batch for each source."""
    chance = random.Random("documents")
    for label, titles in _KINDS.items():
        documents = []
        for service in SERVICES:
            for title in titles:
                body = "\n\n".join((f"# {service}: {title}", *_paragraphs(service, chance)))
                documents.append(
                    NewDocument(
                        source_id=f"{service}-{title.replace(' ', '-').replace(':', '')}.md",
                        title=f"{service}: {title}",
                        body=body,
                        chunks=split(body, max_tokens=_MAX_TOKENS),
                        digest=hashlib.sha256(body.encode()).hexdigest(),
                        updated_at="2026-01-31T12:00:00Z",
                        content_type="text/markdown",
                    )
                )
        yield Batch(source=label, upserts=documents)


def _paragraphs(service: str, chance: random.Random) -> Iterator[str]:
    for _ in range(chance.randint(6, 10)):
        yield " ".join(sentence.format(s=service) for sentence in chance.choices(_SENTENCES, k=4))
