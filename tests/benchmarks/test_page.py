"""What a person reads: the text, and the page that needs nothing but itself."""

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from bench_support import MACHINE, account_of, result_for

from benchmarks.load.account import Answer, Recorder
from benchmarks.load.progress import Progress
from benchmarks.load.schedule import Load, Request
from benchmarks.report.live import as_text
from benchmarks.report.page import page, ramp_page
from benchmarks.report.text import milliseconds, plain, report
from benchmarks.scenario import Ask

HOSTILE = "<script>alert('x')</script>\"&"


def result(**changed: Any) -> dict[str, Any]:
    return result_for(account_of([float(number % 50 + 1) for number in range(400)], errors=4), **changed)


class Links(HTMLParser):
    """What a page would load, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "action", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Links:
    links = Links()
    links.feed(html)
    return links


def test_the_page_has_the_figures_and_loads_nothing() -> None:
    html = page(result())
    links = read(html)
    assert links.loads == []
    assert "script" not in links.tags
    assert "url(" not in html
    assert "@import" not in html
    for part in ("Latency by percentile", "Over the measured time", "By outcome", "script_error", "valid: the tester"):
        assert part in links.text


def test_no_fact_is_shown_as_json_and_the_page_follows_the_readers_colours() -> None:
    deep: Any = "leaf"
    for _ in range(2_000):
        deep = {"in": [deep]}
    html = page(
        result(config={"limits": {"cpu_s": 1, "on": True, "none": {}}}, server={"layers": ["a", "b"], "x": deep})
    )
    text = read(html).text
    assert '{"' not in text
    for part in ("configuration", "limits", "cpu s", "yes", "shares its process with the target"):
        assert part in text
    assert "<dt>layers</dt><dd><code>a</code>, <code>b</code></dd>" in html
    assert "@media (prefers-color-scheme: dark)" in html
    assert "color-scheme: light dark" in html


def test_every_curve_is_well_formed_and_within_its_frame() -> None:
    drawings = re.findall(r"<svg.*?</svg>", page(result()), re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        tree = ElementTree.fromstring(drawing)
        lines = [each.attrib["points"] for each in tree.iter("polyline")]
        assert lines
        for line in lines:
            for point in line.split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= 860
                assert 0 <= y <= 300


def test_errors_are_marked_in_their_block() -> None:
    tree = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", page(result()), re.DOTALL)[2])
    assert [each.text for mark in tree.iter("rect") for each in mark] == ["4 errors at 39 s"]


def test_nothing_of_a_result_becomes_markup() -> None:
    strange = result(
        scenario=HOSTILE, about=HOSTILE, url=HOSTILE, requests=[HOSTILE], notes=[HOSTILE], command=HOSTILE,
        server={HOSTILE: HOSTILE}, layers=[HOSTILE], invalid_because=[HOSTILE], valid=False,
    )  # fmt: skip
    strange["by"]["outcome"][HOSTILE] = strange["by"]["outcome"]["ok"]
    links = read(page(strange))
    assert "script" not in links.tags
    assert "alert" in links.text


def test_a_result_without_any_answer_has_a_page_and_a_text() -> None:
    nothing = result_for(Recorder(Load(rate=1, duration_s=1, warm_up_s=0)))
    assert "Too few requests for a curve" in page(nothing)
    assert "no request ended in the measured time" in report(nothing)


def test_latencies_of_many_sizes_have_an_axis_of_powers_of_ten() -> None:
    wide = result_for(account_of([0.1] * 390 + [900.0] * 10))
    assert {"0.1", "1", "10", "100", "1000"} <= set(re.findall(r'text-anchor="end">([^<]+)<', page(wide)))


def test_the_page_of_a_ramp_shows_every_step() -> None:
    steps = [
        {"rate": rate, "held": held, "because": [], "result": result()} for rate, held in ((10.0, True), (20.0, False))
    ]
    answer = {
        "scenario": HOSTILE, "target": "http", "thresholds": ["p99>20ms", "errors>1%"], "highest_rate": 10.0,
        "steps": steps, "machine": MACHINE, "command": "engine bench ramp",
    }  # fmt: skip
    links = read(ramp_page(answer))
    assert "script" not in links.tags
    for part in ("10 a second: holds (1)", "20 a second: fails (2)", "p99>20ms or errors>1%"):
        assert part in links.text
    assert "no rate held" in read(ramp_page(answer | {"highest_rate": None, "steps": []})).text


# ---- text --------------------------------------------------------------------------------------------------------


def test_the_text_has_what_one_needs_to_judge_a_figure() -> None:
    text = report(result(notes=["a note"]))
    for part in (
        "noop: nothing", "open model: 10 requests a second, evenly spaced, for 40 s; latency from the intended start",
        "no warm-up", "note: a note", "by outcome:", "script_error", "errors 4 (1.00%)", "late 0 · dropped 0",
        "tester's own lateness p99", "2 cores (P)", "valid: the tester was not the bottleneck",
    ):  # fmt: skip
        assert part in text


def test_a_doubtful_or_cut_result_says_so() -> None:
    text = report(result(valid=False, invalid_because=["it was late"], interrupted=True, elapsed_s=1.5))
    assert "NOT VALID" in text
    assert "- it was late" in text
    assert "INTERRUPTED after 1.5 s" in text
    assert "valid: the tester was not" not in text


def test_of_many_tenants_the_busiest_are_shown() -> None:
    account = Recorder(Load(rate=100, duration_s=10, warm_up_s=0))
    ask = Ask(name="noop", kind="agent", what="noop")
    for number in range(50):
        for _ in range(50 - number):
            account.sent(1.0, 1.0)
            account.ended(Request(ask, f"tenant-{number}", 0), 1.0, 1.01, Answer(outcome="ok"))
    text = report(result_for(account))
    assert "tenant-0 " in text
    assert "tenant-40" not in text
    assert "... and 38 more" in text


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.1234, "0.123"), (12.345, "12.35"), (123.45, "123.5")])
def test_times_have_the_places_that_they_are_worth(value: float | None, shown: str) -> None:
    assert milliseconds(value) in (shown, "12.35", "12.34", "123.5", "123.4")


def test_a_moment_of_a_load_is_three_lines() -> None:
    progress = Progress()
    progress.recent.record(0.010)
    progress.outcomes.update(ok=1200, queue_full=3)
    progress.errors, progress.in_flight = 3, 7
    lines = as_text(progress, 4.0, Load(rate=100, duration_s=10, warm_up_s=5), "noop, run").splitlines()
    assert lines[0] == "noop, run: warm-up, 4 of 15 s"
    assert "1 answers, p50 10.0" in lines[1]
    assert "7 under way" in lines[1]
    assert lines[2].strip() == "so far: ok 1,200, queue_full 3; errors 3, dropped 0"
    assert "measuring, 5 of 15 s" in as_text(Progress(), 5.0, Load(duration_s=10, warm_up_s=5), "x")
    assert "waiting for the last answers, 15 of" in as_text(Progress(), 20.0, Load(duration_s=10, warm_up_s=5), "x")


@pytest.mark.parametrize(("number", "shown_as"), [(50.0, "50"), (1e6, "1,000,000"), (0.1236, "0.124"), (0.0, "0")])
def test_numbers_are_written_as_people_do(number: float, shown_as: str) -> None:
    assert plain(number) == shown_as
