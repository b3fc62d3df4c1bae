"""Secrets in texts: no form of one is left, and a text without one stays as it is."""

import base64
import json
import re
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlencode

import pytest
import trio
from effort import part
from engine_support import run, small_config
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from machine import loop_s

from engine.egress.redaction import _PIECE as PIECE
from engine.egress.redaction import MASK, MIN_SECRET_CHARS, NOTHING_SECRET, Redactor
from engine.engine import open_engine
from engine.run import Hearers
from sandbox.wire.outcome import Outcome

TOKEN = "sk-live/4f9+Q~x&y=z 7"
PASSWORD = 'pä"ss\\wörd🔑'


def lower_hex(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)


def every_byte(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def in_json(text: str) -> str:
    return json.dumps(text)


def in_lua(text: str) -> str:
    """Lua's %q (lstrlib.c, addquoted)."""
    out = ""
    for i, character in enumerate(text):
        if character in '"\\\n':
            out += "\\" + character
        elif ord(character) < 32 or ord(character) == 127:
            out += f"\\{ord(character):03d}" if text[i + 1 : i + 2].isdecimal() else f"\\{ord(character)}"
        else:
            out += character
    return f'"{out}"'


def base64_after(before: bytes, after: bytes = b"", *, url_safe: bool = False) -> Callable[[str], str]:
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    return lambda text: encode(before + text.encode() + after).decode()


ENCODERS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "quote": quote,
    "quote, no character safe": lambda text: quote(text, safe=""),
    "quote_plus": quote_plus,
    "quote, lower case": lambda text: lower_hex(quote(text, safe="")),
    "every byte percent-encoded": every_byte,
    "quoted twice": lambda text: quote(quote(text, safe=""), safe=""),
    "a form": lambda text: urlencode({"key": text}),
    "json": in_json,
    "json, not only ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "json, slashes escaped": lambda text: json.dumps(text).replace("/", "\\/"),
    "json in json": lambda text: json.dumps({"body": json.dumps({"key": text})}),
    "json in a form": lambda text: urlencode({"body": json.dumps(text)}),
    "lua": in_lua,
    "python": repr,
    "base64": base64_after(b""),
    "base64, second place": base64_after(b"u"),
    "base64, third place": base64_after(b"u:"),
    "base64, in the middle": base64_after(b"user:", b":more"),
    "base64, url-safe": base64_after(b"user:", url_safe=True),
    "base64, no padding": lambda text: base64_after(b"u:", url_safe=True)(text).rstrip("="),
    "base64 in a form": lambda text: urlencode({"auth": base64_after(b"user:")(text)}),
    "base64 in json": lambda text: json.dumps(base64_after(b"user:")(text)).replace("/", "\\/"),
    "json in base64": lambda text: base64.b64encode(json.dumps({"k": text}).encode()).decode(),
    "json in base64, not only ASCII": lambda text: base64.b64encode(
        json.dumps({"k": text}, ensure_ascii=False).encode()
    ).decode(),
}


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS.keys())
def test_every_form_of_a_secret_is_masked(encode: Callable[[str], str]) -> None:
    for secret in (TOKEN, PASSWORD, "\x019\x02control\x7f9", "-----KEY-----\nYWJj\nZGVm\n-----END"):
        text = f"before {encode(secret)} after"
        masked = Redactor([secret]).text(text)
        assert MASK in masked, text
        assert masked.startswith("before "), masked
        assert masked.endswith(" after"), masked
        assert not shows(masked, secret), masked


def test_what_is_around_a_secret_stays() -> None:
    redactor = Redactor([TOKEN])
    assert redactor.text(f"GET /?token={quote(TOKEN, safe='')}&page=2") == f"GET /?token={MASK}&page=2"
    assert redactor.text(f'{{"token":{json.dumps(TOKEN)},"n":1}}') == f'{{"token":"{MASK}","n":1}}'
    assert redactor.text(f"{TOKEN} and {TOKEN}") == f"{MASK} and {MASK}"
    # "user:" ends in the middle of a group of base64: its last character shares one with the secret
    assert redactor.text("Basic " + base64_after(b"user:")("k" + TOKEN)).startswith("Basic dXNlcjpr")


@pytest.mark.parametrize(
    ("before", "masked"),
    [
        (b"", MASK),  # bmluZS1jaGFy
        (b"u", f"dW{MASK}g=="),  # dW5pbmUtY2hhcg==
        (b"u:", f"dTp{MASK}I="),  # dTpuaW5lLWNoYXI=
        (b"usr", f"dXNy{MASK}"),  # dXNybmluZS1jaGFy
    ],
)
def test_of_base64_only_what_a_secret_shares_with_its_neighbours_is_left(before: bytes, masked: str) -> None:
    assert Redactor(["nine-char"]).text(base64_after(before)("nine-char")) == masked


def test_secrets_that_overlap_or_contain_each_other_are_masked_as_one() -> None:
    redactor = Redactor(["abcdefgh", "efghijkl", "xxabcdefghyy"])
    assert redactor.text("-abcdefghijkl-") == f"-{MASK}-"
    assert redactor.text("-xxabcdefghyy-") == f"-{MASK}-"
    assert redactor.text("-abcdefghefghijkl-") == f"-{MASK}-"


@pytest.mark.parametrize("secret", ["aaaaaaaa", "abababababab", "abcabcabcab", "xyzzyxyzz", "aabaaxaabaa"])
def test_a_secret_that_overlaps_itself_is_masked_to_its_end(secret: str) -> None:
    redactor = Redactor([secret])
    for shift in range(1, len(secret)):
        if not secret.startswith(secret[shift:]):
            continue
        for times in (1, 2, 5):
            assert redactor.text(f"-{secret}{secret[len(secret) - shift :] * times}-") == f"-{MASK}-"


def test_short_values_are_no_secrets() -> None:
    redactor = Redactor(["", "a", "1234567", "x" * (MIN_SECRET_CHARS - 1)])
    text = "a 1234567 xxxxxxx " + base64.b64encode(b"1234567").decode()
    assert redactor.text(text) == text
    assert Redactor(["x" * MIN_SECRET_CHARS]).text("x" * MIN_SECRET_CHARS) == MASK


def test_white_space_around_a_value_does_not_count() -> None:
    assert Redactor(["from-a-file\n"]).text("token=from-a-file;") == f"token={MASK};"
    assert Redactor(["  abcdefg  "]).text("-  abcdefg  -abcdefg-") == f"-{MASK}-abcdefg-"


@pytest.mark.parametrize("value", [" " * 20, "\n\t \n\t \n\t ", "   abcde    "])
def test_a_value_that_is_little_but_white_space_masks_nothing(value: str) -> None:
    text = f"nothing{value}here, abcde neither"
    assert Redactor([value]).text(text) == text


def test_a_secret_in_a_line_that_is_not_utf8_is_masked_as_the_log_has_it() -> None:
    assert Redactor(["pässwörd"]).text("? and p??ssw??rd") == f"? and {MASK}"
    # as good as nothing is left of this one: it is not looked for
    assert Redactor(["ключключ1"]).text("????????????????1") == "????????????????1"


def test_a_secret_of_the_environment_need_not_be_utf8() -> None:
    secret = b"byte\xff\xfebytes".decode(errors="surrogateescape")
    redactor = Redactor([secret, "half \ud83d of a pair"])
    assert redactor.text("byte??bytes") == MASK
    assert MASK in redactor.text(base64.b64encode(b"u:byte\xff\xfebytes").decode())
    assert redactor.text(f"a {secret} b") == f"a {MASK} b"


def test_a_value_that_is_part_of_the_mask_leaves_the_mask_alone() -> None:
    redactor = Redactor(["redacted", MASK, TOKEN])
    assert redactor.text(f"redacted {TOKEN}") == f"redacted {MASK}"


def test_nothing_is_secret_by_default() -> None:
    assert NOTHING_SECRET.text(f"{TOKEN} %41 \\u0041") == f"{TOKEN} %41 \\u0041"


def test_many_secrets_are_each_found() -> None:
    secrets = [f"secret-number-{i:04d}" for i in range(500)]
    redactor = Redactor(secrets)
    assert redactor.text(" ".join(secrets)) == " ".join([MASK] * 500)
    assert redactor.text("secret-number-9999") == "secret-number-9999"


def test_a_text_full_of_escapes_is_read_to_its_end() -> None:
    redactor = Redactor([TOKEN])
    for filler in ("%41", "\\\\", "\\u0041", "%5C%5C", "%2525", "%", "\\", "%C3"):
        text = filler * 5_000
        assert redactor.text(text) == text
        assert redactor.text(f"{text} {TOKEN}") == f"{text} {MASK}"


# Reading a text in other ways than the module does: does any of them show the secret?


def unescape(text: str) -> str:
    """Without the escapes of JSON; what is none stays."""

    def one(match: re.Match[str]) -> str:
        try:
            return str(json.loads(f'"{match[0]}"'))
        except ValueError:
            return match[0]

    return re.sub(r"(?:\\u[0-9a-fA-F]{4})+|\\.", one, text, flags=re.DOTALL)


def shows(text: str, secret: str) -> bool:
    """Whether decoding the text shows the secret."""
    readings = {text}
    for decode in (unquote, unquote_plus, unescape):
        readings |= {decode(reading) for reading in readings}
    if any(secret in reading for reading in readings):
        return True
    return any(secret.encode() in raw for reading in readings for raw in decoded_base64(reading))


def decoded_base64(text: str) -> list[bytes]:
    found = []
    for encoded in re.findall(r"[A-Za-z0-9+/_-]{8,}", text):
        standard = encoded.replace("-", "+").replace("_", "/")
        for skipped in range(4):
            groups = standard[skipped:]
            groups += "A" * (-len(groups) % 4)
            found.append(base64.b64decode(groups))
    return found


# Some of these characters are what encodings are made of, and what they change.
ODD = st.sampled_from("\"\\/%+-_=:@ ?&'\n\taZ09éß€🔑")
LETTER = st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


@st.composite
def secrets(draw: st.DrawFn) -> str:
    text = draw(st.text(st.one_of(LETTER, LETTER, ODD, st.characters(codec="utf-8")), min_size=8, max_size=40))
    assume(len(text.strip()) >= MIN_SECRET_CHARS)
    return text.strip()


SURROUNDINGS = st.one_of(
    st.text(max_size=30),
    st.text(st.one_of(ODD, LETTER), max_size=30),
    st.lists(st.sampled_from(["%", "%4", "%25", "%C3", "\\", "\\\\", "\\u", "\\u00", '"', "dXNlcjp", "=", " "])).map(
        "".join
    ),
)


@example(secret='"aaaaaaa', encoder="json", before="\\", after="")
@example(secret="%41%41%41", encoder="quote", before="%", after="41")
@given(secrets(), st.sampled_from(sorted(ENCODERS)), SURROUNDINGS, SURROUNDINGS)
def test_whatever_is_around_a_secret_no_form_of_it_is_left(secret: str, encoder: str, before: str, after: str) -> None:
    assume(secret not in MASK)
    # An unfinished escape in front takes the first letters of what follows for its own: that is another text.
    assume(encoder == "raw" or not re.search("%[0-9A-Fa-f]?$", before))
    encoded = ENCODERS[encoder](secret)
    masked = Redactor([secret]).text(f"{before}{encoded}{after}")
    assert MASK in masked
    assert encoded not in masked
    assert not shows(masked, secret)


@given(st.lists(secrets(), min_size=1, max_size=4), SURROUNDINGS, st.data())
def test_several_secrets_in_one_text_are_all_masked(several: list[str], between: str, data: st.DataObject) -> None:
    assume(not any(secret in MASK for secret in several))
    encoders = [ENCODERS[data.draw(st.sampled_from(sorted(ENCODERS)))] for _ in several]
    pieces = [encode(secret) for encode, secret in zip(encoders, several, strict=True)]
    masked = Redactor(several).text(f" {between} ".join(pieces))
    for secret in several:
        assert not shows(masked, secret)


@st.composite
def near_misses(draw: st.DrawFn, secret: str) -> str:
    """Texts made of escapes and of parts of the secret's own forms."""
    pieces = []
    for _ in range(draw(st.integers(0, 6))):
        form = ENCODERS[draw(st.sampled_from(sorted(ENCODERS)))](secret)
        start = draw(st.integers(0, len(form)))
        pieces.append(draw(st.one_of(st.just(form[start : start + draw(st.integers(0, 12))]), SURROUNDINGS)))
    return "".join(pieces)


@given(st.data(), secrets())
def test_a_text_that_shows_no_secret_is_left_as_it_is(data: st.DataObject, secret: str) -> None:
    text = data.draw(near_misses(secret))
    spaces_as_plus = secret.replace(" ", "+")
    blurred = re.sub("[^\x00-\x7f]", lambda match: "?" * len(match[0].encode()), secret)
    assume(not any(shows(text, form) for form in (secret, spaces_as_plus, blurred, in_lua(secret)[1:-1])))
    assume(not any(base64_core(secret, form) in standard for form in "012" for standard in all_readings(text)))
    assert Redactor([secret]).text(text) == text


def base64_core(secret: str, place: str) -> str:
    """The part of a secret's base64 that does not depend on its neighbours, found by trying two neighbours."""
    before = int(place)
    one, other = (base64.b64encode(fill * before + secret.encode() + fill * 3).decode() for fill in (b"\0", b"\xff"))
    same = "".join(a if a == b else " " for a, b in zip(one, other, strict=True))
    return max(same.split(), key=len)


def all_readings(text: str) -> list[str]:
    readings = {text}
    for decode in (unquote, unescape):
        readings |= {decode(reading) for reading in readings}
    return [reading.replace("-", "+").replace("_", "/") for reading in readings]


@given(secrets(), st.text(max_size=50))
def test_masking_twice_is_masking_once(secret: str, text: str) -> None:
    redactor = Redactor([secret])
    assume(not set(secret) & set(MASK))
    once = redactor.text(f"{text}{secret}{text}")
    assert redactor.text(once) == once


@given(secrets(), st.sampled_from(sorted(ENCODERS)))
def test_a_piece_of_a_secret_that_is_short_is_innocent(secret: str, encoder: str) -> None:
    form = ENCODERS[encoder](secret)
    redactor = Redactor([secret])
    for start in range(len(form) - 5):
        piece = form[start : start + 5]
        assert redactor.text(piece) == piece


async def test_what_a_script_logs_reports_and_fails_with_shows_no_secret() -> None:
    secret = 'pä"ss/wörd'
    script = """
        local secret = ...
        log.info('raw ' .. secret)
        log.warn(json.encode({ key = secret }))
        log.info('Basic ' .. base64.encode('user:' .. secret))
        log.info(string.format('%q', secret))
        log.error('not UTF-8: \\xff ' .. secret)
        context.progress(0.5, 'with ' .. secret)
        error('denied: ' .. secret)
    """
    told: list[str | None] = []
    redactor = Redactor([secret])
    async with open_engine(small_config(), ()) as engine:
        result = await run(
            engine,
            script,
            secret,
            masked=redactor.secrets,
            hearers=Hearers(progress=lambda fraction, message: told.append(message)),
        )
        assert result.failure is not None
        assert [line.text for line in result.logs] == [
            f"raw {MASK}",
            f'{{"key":"{MASK}"}}',
            f"Basic dXNlcjp{MASK}Q=",
            f'"{MASK}"',
            f"not UTF-8: \N{REPLACEMENT CHARACTER} {MASK}",
            "t.lua:7: a log line is not UTF-8: one broken part became U+FFFD (string.sub counts bytes; "
            "text.sub counts characters)",
        ]
        assert told == [f"with {MASK}"]
        assert f"denied: {MASK}" in result.failure.message
        for text in (*(line.text for line in result.logs), result.failure.message, str(result.failure.traceback)):
            assert not shows(text, secret)
        assert (
            await run(engine, "return (...)", secret, masked=redactor.secrets)
        ).value == secret  # answers are left alone


# Texts that are as costly to read as can be, for each character.
COSTLY = ("\\n", "\\\\", "%41", "\\u0041", "%5Cn", "\\n%41", "%2541", "QUFB", "plain ", "\N{KEY}")


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("costly", COSTLY)
def test_what_is_redacted_at_once_takes_no_time_worth_a_thread(costly: str) -> None:
    for secrets in ([TOKEN], [f"{TOKEN}-{i:03d}" for i in range(65)]):
        redactor = Redactor(secrets)
        size = 1 << 20
        while redactor.is_work(text := costly * (size // len(costly))):
            size = size * 3 // 4
        began_s = time.thread_time()
        redactor.text(text)
        assert time.thread_time() - began_s < 2 * loop_s(), (costly, size)
    assert not NOTHING_SECRET.is_work(text * 1000)


@pytest.mark.whole
@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("costly", part(COSTLY, lambda _: None, one_in=2))
async def test_a_log_full_of_escapes_delays_no_other_run_and_is_charged(costly: str) -> None:
    """The longest piece of CPU time that the thread of the event loop spends between two turns of another task."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        last_s = time.thread_time()
        while True:
            await trio.sleep(0.001)
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    script = f"log.info(string.rep({json.dumps(costly, ensure_ascii=False)}, 300000 // {len(costly)}) .. (...))"
    async with open_engine(small_config(limits="max = { log_bytes = 2097152 }"), ()) as engine:
        await run(engine, "return 1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            result = await run(engine, script, TOKEN, masked=(TOKEN,), limits={"log_bytes": 2 << 20, "timeout_s": 15})
            nursery.cancel_scope.cancel()
        assert result.outcome is Outcome.OK, result.failure
        (line,) = result.logs
        assert line.text.endswith(MASK)
        assert TOKEN not in line.text
        assert longest_s < 2 * loop_s()
        assert result.usage.nested_cpu_s > 0
        assert (await run(engine, "return 1")).value == 1


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([PIECE - 40, PIECE - 3, PIECE, PIECE + 5, 2 * PIECE - 7]),
    st.sampled_from(["plain", "percent", "twice", "json", "json in json", "base64"]),
    st.sampled_from(["x", "\\n", "%41", "\\\\", "QUJD"]),
)
def test_a_secret_at_the_edge_of_a_piece_of_a_long_text_is_found(at: int, form: str, filler: str) -> None:
    secret = "tö\U0001f600ken-of-an-operator"
    written = {
        "plain": secret,
        "percent": quote(secret, safe=""),
        "twice": quote(quote(secret, safe=""), safe=""),
        "json": json.dumps(secret)[1:-1],
        "json in json": json.dumps(json.dumps(secret)[1:-1])[1:-1],
        "base64": base64.b64encode(f"user:{secret}".encode()).decode(),
    }[form]
    before = (filler * (at // len(filler) + 1))[: at - at % len(filler)]
    text = f"{before} {written} {filler * 40_000}"
    redacted = Redactor([secret]).text(text)
    assert MASK in redacted
    assert written not in redacted
    assert len(redacted) < len(text)
