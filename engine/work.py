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
            "head", "the head of a request is read",
            16 * 1024, 128, "server/framing.py", "the operator: no key is known yet",
        ),
        WorkSpec(
            "chunks", "the chunks of a body are taken apart",
            256 * 1024, None, "beside server.max_body_bytes", "the operator",
        ),
        WorkSpec(
            "body", "a request's JSON is parsed and checked",
            None, 100_000, "server.max_body_bytes; values by counting before parsing", "the tenant's CPU seconds",
        ),
    )
}  # fmt: skip
