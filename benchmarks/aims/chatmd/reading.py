"""Reading a document, beside the standard library's HTML parser on the same text, in CPU time."""

import gc
import time
from collections.abc import Callable
from html.parser import HTMLParser

from agents.chatmd.reader import Bounds, read
from benchmarks.aims.harness import Figures, in_turns

MB = 1_000_000
# A stored conversation as programs write them: prose with markup in it, records, blocks of RAW, comments, files.
_TURN = """<user name="operator">
Which service failed at 14:02? Look at <doc src="logs/payments.txt" local/> first, and at anything in <b>bold</b> there.
It says `retries < 3 && open > 5`, which is <em>not</em> what <img src="https://example.org/graph.png"/> shows.
</user>
<reasoning id="rs_1">
<summary>The breaker opened at 14:02; the log names `payments.breaker.window_s`.</summary>
</reasoning>
<tool_call tool_call_id="call_1" function_name="search" id="fc_1">
RAW|{"query": "payments <breaker>", "limit": 5}|RAW</tool_call>
<tool_response tool_call_id="call_1">
RAW|[{"title": "Breakers", "score": 0.92, "snippet": "opens <after> 5 errors"}]|RAW</tool_response>
<!-- the answer was checked by hand -->
<assistant id="msg_1" status="completed">
The breaker of **payments** opened. Its window is 30 s, see `INC-362`; nothing else in the list fits the time.
</assistant>
"""


def text_of(size: int) -> str:
    """A document of at least this many characters."""
    return _TURN * (size // len(_TURN) + 1)


def _ours(text: str) -> None:
    reading = read(text, Bounds(len(text), len(text)))
    if reading.diagnostics or not reading.document.nodes:
        raise RuntimeError(f"the document was not read: {reading.diagnostics[:1]}")


class _Counting(HTMLParser):
    """Does as little with each tag and text as it can."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen += 1

    def handle_data(self, data: str) -> None:
        self.seen += 1


def _html(text: str) -> None:
    parser = _Counting()
    parser.feed(text)
    parser.close()
    if not parser.seen:
        raise RuntimeError("html.parser found nothing")


def measure(megabytes: float, rounds: int) -> Figures:
    """CPU seconds of each round, by row: `ours` and `html.parser` on one text, `twice` ours on twice as much."""
    text, twice = (text_of(int(times * megabytes * MB)) for times in (1, 2))
    rows: dict[str, Callable[[], None]] = {
        "ours": lambda: _ours(text),
        "html.parser": lambda: _html(text),
        "twice": lambda: _ours(twice),
    }
    seen: dict[str, list[float]] = {name: [] for name in rows}
    for name in in_turns(list(rows), rounds):
        gc.collect()
        began = time.process_time()
        rows[name]()
        seen[name].append(time.process_time() - began)
    return seen
