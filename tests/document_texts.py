"""Texts for property tests."""

from hypothesis import strategies as st

# Texts that look like documents: headings, fences, both kinds of line end, long words, several bytes a character.
DOCUMENTS = st.lists(
    st.sampled_from(
        ["# ", "## h", "\n", "\r\n", "\n\n", "\r\n\r\n", " ", "\t", "word", "é", "漢字", "🎉", "```\n", "x" * 40]
    )
    | st.text(max_size=8)
).map("".join)
