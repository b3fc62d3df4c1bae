"""Scripts of models: which reply a request gets, and what is said of a script that is wrong."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.scripted import MAX_SCRIPT_BYTES, Scripted, last_text, parse_script


def played(script: str, *messages: str) -> list[str | None]:
    playing = Scripted(parse_script(script))
    replies = [playing.next(message) for message in messages]
    return [None if reply is None else reply.text for reply in replies]


def test_replies_come_in_order_and_the_last_repeats() -> None:
    script = '[[reply]]\ntext = "one"\n[[reply]]\ntext = "two"\n'
    assert played(script, "a", "a", "b", "c") == ["one", "two", "two", "two"]


def test_a_reply_with_when_is_for_messages_that_hold_its_text_however_often_they_come() -> None:
    script = """
    [[reply]]
    when = "weather"
    text = "call"
    [[reply]]
    text = "sunny"
    [[reply]]
    when = "18 C"
    text = "warm"
    """
    assert played(script, "the weather?", "18 C", "the weather?", "18 C", "else", "else") == [
        "call", "warm", "call", "warm", "sunny", "sunny",
    ]  # fmt: skip
    assert played('[[reply]]\nwhen = "x"\ntext = "y"', "z") == [None]


@given(st.lists(st.sampled_from(["a", "b"]), max_size=12))
def test_conversations_at_once_get_what_each_would_get_alone(order: list[str]) -> None:
    script = '[[reply]]\nwhen = "a"\ntext = "to a"\n[[reply]]\nwhen = "b"\ntext = "to b"\n'
    assert played(script, *order) == [f"to {each}" for each in order]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "it has no [[reply]]"),
        ("[reply", "not valid TOML"),
        ("reply = []", "reply: "),
        ("[[reply]]\ntext = 1", "reply 1, key text: "),
        ("[[reply]]\n[[reply]]\ntexts = 'x'", "reply 2, key texts: extra inputs are not permitted"),
        ("[[reply]]\nfault = 'burn'", "reply 1, key fault: input should be 'stall', 'cut', 'garbage' or 'huge'"),
        ("[[reply]]\nstatus = 99", "reply 1, key status: "),
        ("[[reply]]\ndelay_s = -1", "reply 1, key delay_s: "),
        ("[[reply]]\nusage = { input = -1 }", "reply 1, key usage.input: "),
        ("[[reply]]\ntool_calls = [{ arguments = {} }]", "reply 1, key tool_calls.0.name: field required"),
        ("other = 1\n[[reply]]", "other: extra inputs are not permitted"),
        ("# " + "x" * MAX_SCRIPT_BYTES, "larger than"),
    ],
)
def test_a_wrong_script_is_told_with_its_place(script: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_script(script)
    assert "\n" not in str(caught.value)


def test_the_last_message_is_read_on_both_wires() -> None:
    assert last_text([{"content": "a"}, {"content": "b"}]) == "b"
    assert last_text([{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]) == "a\nb"
    blocks = [{"type": "tool_result", "content": "x"}, {"type": "tool_result", "content": [{"text": "y"}]}]
    assert last_text([{"content": blocks}]) == "x\ny"
    assert last_text([{"content": None}]) == last_text([]) == last_text(["x"]) == last_text(None) == ""
