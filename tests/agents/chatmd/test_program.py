"""A document as it runs: placeholders in its texts, and what becomes of each of its elements."""

from agents.chatmd.program import Doc, Nested, Part, Program, Said, StoredCall, Words, filled


def program_with(*parts: Part) -> Program:
    return Program(
        model=None, temperature=None, max_output_tokens=None,
        items=(Said("system", (Words("{{a}}"),), leading=True), Said("user", parts), StoredCall("1", "{{a}}", "{{a}}")),
        tools=(), unavailable=(), documents={}, description="{{a}}", folder="", source="{{a}}", sha256="", imports=(),
    )  # fmt: skip


def test_a_placeholder_is_replaced_once_in_texts_of_messages_and_nowhere_else() -> None:
    document = Doc("{{a}}", "{{a}}")
    given = program_with(Words("{{a}} {{b}} {{c}} {{ a }}"), document, Nested("n", "p", (Words("{{b}}"), document)))
    program, unnamed = filled(given, {"a": "{{b}}<tool name='x'/>RAW|", "b": "2", "d.e": "never"})
    assert program.items[0] == Said("system", (Words("{{b}}<tool name='x'/>RAW|"),), leading=True)
    said = program.items[1]
    assert isinstance(said, Said)
    assert said.parts == (
        Words("{{b}}<tool name='x'/>RAW| 2 {{c}} {{ a }}"),
        document,
        Nested("n", "p", (Words("2"), document)),
    )
    assert program.items[2] == given.items[2]
    assert (program.description, program.source) == ("{{a}}", "{{a}}")
    assert unnamed == ("d.e",)


def test_names_of_placeholders_are_texts_and_no_patterns() -> None:
    program, unnamed = filled(program_with(Words("{{a.c}} {{abc}}")), {"a.c": "1", "(": "2"})
    assert program.items[1] == Said("user", (Words("1 {{abc}}"),))
    assert unnamed == ("(",)


def test_without_values_nothing_is_replaced() -> None:
    given = program_with(Words("{{}} {{a}}"))
    assert filled(given, {}) == (given, ())
