"""`template`: Mustache without lambdas and other delimiters."""

import pytest
from lua_support import error_of, value_of


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("Hi {{name}}!", {"name": "Ann"}, "Hi Ann!"),
        ("{{a.b.c}}|{{a.x}}|{{n}}|{{t}}", {"a": {"b": {"c": 1}}, "n": 2.0, "t": True}, "1||2|true"),
        ("{{#l}}<{{.}}>{{/l}}{{^l}}none{{/l}}", {"l": [1, 2]}, "<1><2>"),
        ("{{#l}}<{{.}}>{{/l}}{{^l}}none{{/l}}", {"l": []}, "none"),
        ("{{#a}}{{b}}{{outer}}{{/a}}", {"a": {"b": 1}, "outer": 2}, "12"),
        ("{{#a}}{{#a}}x{{/a}}{{/a}}", {"a": True}, "x"),
        ("a\n{{#s}}\nb\n{{/s}}\nc\n", {"s": True}, "a\nb\nc\n"),
        ("a\n{{#s}}\nb\n{{/s}}\nc\n", {"s": False}, "a\nc\n"),
        ("a{{! a }} comment", {}, "a comment"),
        ("a\n  {{! alone }}\nb", {}, "a\nb"),
        ("{{ x }}{{{ x }}}{{& x }}", {"x": "<"}, "<<<"),
        ("no tags { } }} {", {}, "no tags { } }} {"),
        ("{{#s}}{{x}}{{/s}}", {"s": "text", "x": 1}, "1"),
    ],
)
def test_a_text_is_rendered(text: str, values: dict[str, object], expected: str) -> None:
    assert value_of("local t, v = ... return template.render(t, v)", text, values) == expected


@pytest.mark.parametrize(
    ("escape", "expected"),
    [
        ("none", 'a<"*& ü'), ("html", "a&lt;&quot;*&amp; ü"), ("json", 'a<\\"*& ü'), ("url", "a%3C%22%2A%26%20%C3%BC"),
        ("markdown", 'a\\<"\\*& ü'),
    ],
)  # fmt: skip
def test_values_are_escaped_by_kind_and_the_text_is_not(escape: str, expected: str) -> None:
    rendered = value_of(
        "local v, e = ... return template.render('<{{v}}>{{{v}}}', {v = v}, {escape = e})", 'a<"*& ü', escape
    )
    assert rendered == f'<{expected}>a<"*& ü'


def test_what_a_value_holds_is_never_read_as_a_template() -> None:
    assert (
        value_of("return template.render('{{a}}{{>p}}', {a = '{{b}}', b = 1}, {partials = {p = '{{a}}'}})")
        == "{{b}}{{b}}"
    )


def test_a_template_reads_nothing_but_its_values_and_calls_nothing() -> None:
    assert (
        value_of("return template.render('{{_G}}{{string}}{{a.__index}}', {a = setmetatable({}, {__index = _G})})")
        == ""
    )
    assert "is a function" in error_of("template.render('{{f}}', {f = print})")


@pytest.mark.parametrize(
    "call",
    [
        "template.render('{{#a}}', {})", "template.render('{{/a}}', {})", "template.render('{{#a}}{{/b}}', {})",
        "template.render('{{a', {})", "template.render('{{{a}}', {})", "template.render('{{}}', {})",
        "template.render('{{a b}}', {})", "template.render('{{>a}}', {})", "template.render(5, {})",
        "template.render('')",
        "template.render('{{>a}}', {}, {partials = {a = '{{>a}}'}})", "template.render('', {}, {escape = 'x'})",
        "template.render(('{{#a}}'):rep(99) .. ('{{/a}}'):rep(99), {a = true})",
        "template.render('', {}, {partials = 1})",
    ],
)  # fmt: skip
def test_what_is_wrong_is_an_error_at_the_scripts_line(call: str) -> None:
    assert error_of(f"\n{call}").startswith("t.lua:2: template.render: ")
