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
            None, 100_000, "server.max_body_bytes; values by counting before parsing", "the tenant's CPU seconds",
        ),
        WorkSpec(
            "schema", "a tool's schema is checked and compiled",
            64 * 1024, 2_000, "64 levels; 64 patterns of 256 KiB each and 512 KiB in all, compiled; no unevaluated* "
            "inside of what another one looks at", "the tenant's CPU seconds",
        ),
        WorkSpec(
            "validation", "parameters and answers of tools are held against their schema",
            None, None, "40 ms by weights of keywords, values and characters (agents/schema_work.py)",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "declaration", "what a script declares or answers is made into an agent, a tool or a prompt",
            64 * 1024, 4_096, "lists: 256 tools, 64 arguments, 256 values of one, 4,096 messages, 10,000 completions; "
            "a description 16 KiB; answers as limits.output_bytes", "the tenant's CPU seconds",
        ),
        WorkSpec(
            "upload", "a package is parsed, addressed and made what is called",
            None, None, "server.max_body_bytes, 16 MiB and 256 files; a toml file 256 KiB, with 16 KiB and 64 dots "
            "beside its texts; versions in parts of 64 and 8 MiB, in a thread", "the tenant's CPU seconds",
        ),
    )
}  # fmt: skip
