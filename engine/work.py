"""What the supervisor does for strangers: each piece of work whose size a stranger chooses, its bound, and who pays.

One list. SECURITY.md shows it, `tests/security/supervisor` drives the worst input of every row against `LOOP_S` and
`GROWTH`, and the modules named here read their bounds from it. Pure.
"""

from dataclasses import dataclass

# No piece of work keeps the event loop for longer than this on an idle core, counted in the supervisor's CPU time.
LOOP_S = 0.05
# Nor does an input make the process larger by more than this many times its own size.
GROWTH = 16


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """One kind of work: what is done, the bound in bytes and in values (None: a limit or a quota says), who pays."""

    name: str
    what: str
    max_bytes: int | None
    max_values: int | None
    bound_by: str
    payer: str


WORK: dict[str, WorkSpec] = {
    spec.name: spec
    for spec in (
        WorkSpec(
            "body", "a request's JSON is parsed and checked",
            None, 100_000, "server.max_body_bytes; commas and opening brackets, counted before parsing",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "bodies", "bodies are held, from their first byte to the end of the answer",
            None, None, "64 of server.max_body_bytes or 1/16 of memory; half of it for a tenant (server/bodies.py)",
            "nothing is computed",
        ),
        # The SDK parses a message again, with the standard library: three times as slow as ours.
        WorkSpec(
            "message", "an MCP message is parsed, and checked against the protocol's types",
            None, 50_000, "server.max_body_bytes; as a body; 2,000 values beside a tool's arguments",
            "the tenant's CPU seconds, but for the SDK's part",
        ),
        WorkSpec(
            "answer", "what a script returns is decoded and checked",
            None, 100_000, "limits.output_bytes; values and keys, counted before decoding",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "answer as JSON", "an answer is rendered for its client",
            20 * 1024 * 1024, None, "known before decoding; a character that JSON escapes counts as six bytes",
            "the tenant's CPU seconds",
        ),
    )
}  # fmt: skip
