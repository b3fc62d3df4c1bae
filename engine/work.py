"""The supervisor's work on hostile input: each piece whose size a client or script chooses, its bound, and who pays.

One list. SECURITY.md shows it, `tests/security/supervisor` runs the worst input of every row against `LOOP_S` and
`GROWTH`, and the modules named here read their bounds from it. Pure.
"""

from dataclasses import dataclass

from sandbox.wire.extraction import MAX_PAGES, MAX_TEXT_BYTES

# No piece of work blocks the event loop for longer than this on an idle core, in CPU time of the supervisor.
LOOP_S = 0.05
# No input grows the process by more than this many times its own size.
GROWTH = 16


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """One kind of work: what is done, its bound in bytes and in values (None: a limit or quota sets it), who pays."""

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
            16 * 1024, 128, "server/transport/framing.py", "the operator: no key is known yet",
        ),
        WorkSpec(
            "token", "a token of an OAuth issuer is read and verified",
            8 * 1024, 512, "server/oauth/token.py; RSA keys of 4,096 bits; 20 a second of an address, 400 in all",
            "the tenant's CPU seconds; the operator, for one that gives no access",
        ),
        WorkSpec(
            "issuer keys", "the metadata and keys of an OAuth issuer are read",
            256 * 1024, 4_096, "server/oauth/keys.py, issuers.py; 64 keys; metadata 64 KiB and 2,000; every 30 s",
            "the operator",
        ),
        WorkSpec(
            "chunks", "the chunks of a body are taken apart",
            256 * 1024, None, "beside server.max_body_bytes", "the operator",
        ),
        WorkSpec(
            "body", "a request's JSON is parsed and checked",
            None, 50_000, "server.max_body_bytes; commas and opening brackets, counted before parsing",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "bodies", "bodies are held, from their first byte to the end of the answer",
            None, None, "64 of server.max_body_bytes or 1/16 of memory; half for a tenant (server/http/body_budget.py)",
            "nothing is computed",
        ),
        # The SDK parses a message again, with the standard library: three times as slow as ours.
        WorkSpec(
            "message", "an MCP message is parsed, and checked against the protocol's types",
            None, 50_000, "server.max_body_bytes; as a body; 2,000 values and 65,536 characters beside arguments",
            "the tenant's CPU seconds, but for the SDK's part",
        ),
        WorkSpec(
            "answer", "what a script returns is decoded and checked",
            None, 50_000, "limits.output_bytes; values and keys, counted before decoding",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "answer as JSON", "an answer is rendered for its client",
            20 * 1024 * 1024, None, "known before decoding; a character that JSON escapes counts as six bytes",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "frame", "a worker's message is decoded",
            None, None, "output_bytes, log_bytes; of each kind by its first bytes; 64 calls", "its run is ended",
        ),
        WorkSpec(
            "arguments", "the arguments of a host call are decoded",
            None, 50_000, "output_bytes; values by counting before decoding", "the run's CPU seconds",
        ),
        WorkSpec(
            "calls", "host calls hold arguments, bodies and answers",
            512 * 1024 * 1024, None, "limits of the run; 128 MiB a tenant; 512 MiB in all", "the call is refused",
        ),
        WorkSpec(
            "key", "a value for kv.set is checked, encoded and stored; keys are listed",
            64 * 1024, None, "engine/bridge/kv.py; keys of 512 bytes; 64 calls of a tenant; lists of 1,500 rows",
            "the run's CPU seconds",
        ),
        WorkSpec(
            "table", "a table is written as the JSON of a request",
            2 * 1024 * 1024, 50_000, "as msgpack, before it is decoded", "the run's CPU seconds",
        ),
        WorkSpec(
            "json", "the JSON of a host's answer is parsed",
            8 * 1024 * 1024, 50_000, "by counting before; beyond it the script parses", "the run's CPU seconds",
        ),
        WorkSpec(
            "veil", "a host's answer is searched for secrets",
            None, None, "http_bytes; 64 secrets of 64 KiB; in a thread beyond 1 MiB x forms", "the run's CPU seconds",
        ),
        WorkSpec(
            "redaction", "a line of the log, an error, a traceback is searched for secrets",
            None, None, "log_bytes; errors 8,192 and 32,768 characters; in a thread beyond 1,000 escapes",
            "the run's CPU seconds",
        ),
        WorkSpec(
            "schema", "the schema of a tool, or of a script's json.schema, is checked and compiled",
            64 * 1024, 2_000, "64 levels; 64 patterns of 256 KiB each and 512 KiB in all, compiled, and 5 ms to read; "
            "no unevaluated* inside of what another one looks at", "the tenant's CPU seconds; json.schema: the run's",
        ),
        WorkSpec(
            "validation", "parameters and answers of tools, and values of json.schema, are held against their schema",
            None, None, "40 ms by weights of keywords, values and characters (agents/shapes/schema_work.py)",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "declaration", "what a script declares or answers is made into an agent, a tool or a prompt",
            64 * 1024, 1_024, "lists: 256 tools, 64 arguments, 256 values of one, 1,024 messages, 10,000 completions; "
            "a description 16 KiB; answers as limits.output_bytes", "the tenant's CPU seconds",
        ),
        WorkSpec(
            "description", "the OpenAPI description of what a key may call is rendered",
            1024 * 1024, None, "the schemas of tools and agents together; kept until one changes "
            "(server/rest/openapi.py)", "the tenant's CPU seconds",
        ),
        WorkSpec(
            "bundle", "a script's text is searched for the files that it requires, and theirs",
            None, 50_000, "limits.source_bytes of all together; 32 files; one pass, in a thread (engine/bundle.py)",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "document", "the text that an extractor found in a file is decoded and checked",
            MAX_TEXT_BYTES, MAX_PAGES, "sandbox/wire/extraction.py; a title of 2 KiB; in pieces of 64 KiB",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "source of a prompt", "a document in ChatMD is read, with its files and what it takes from addresses",
            None, 100_000, "limits.source_bytes with its imports, limits.fs_bytes of a file, 8 times that of all; 64 "
            "documents and 64 addresses of 30 s; in a thread (agents/chatmd/opening.py)",
            "the operator, whose documents these are",
        ),
        WorkSpec(
            "emitted item", "an item that a connector's script emits is checked, and cut for the store",
            64 * 1024 * 1024, 50_000, "max_extract_bytes of one, 64 MiB and 100,000 items of a scan; "
            "metadata_json 64 KiB (agents/scanning.py)", "the run's CPU seconds; cutting: the tenant's",
        ),
        WorkSpec(
            "checkpoint", "the checkpoint of a connector's scan is written as JSON",
            64 * 1024, 10_000, "agents/scanning.py; values counted before; in a thread beyond 256 of them",
            "the run's CPU seconds",
        ),
        WorkSpec(
            "searching", "the words and filters of a search are read, and documents are found by them",
            16_384, 32, "knowledge/ranking.py: 4,096 characters, 32 words; a pattern 512 characters, 32 alternatives "
            "(knowledge/globs.py); 100 hits; in the store's thread, stopped when cancelled",
            "the run's CPU seconds; of a client: the tenant's",
        ),
        WorkSpec(
            "query", "the words of a search by meaning are cut in pieces and become a vector",
            8_000, 2_000, "knowledge/embedding: 2,000 characters; in a thread; 2 s; an embedder's answer by its dims",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "model answer", "one event of a model's answer is parsed",
            1024 * 1024, 10_000, "engine/models/shapes.py; values by counting before parsing; output_bytes in all",
            "the operator, whose models these are",
        ),
        WorkSpec(
            "conversation", "the messages of a document's run are rendered for its model",
            None, None, "agents/chatmd/run.py; four bytes for each of the model's context_tokens, counted before; "
            "256 KiB of a tool's answer; limits.model_turns and tool_calls",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "tool server's answer", "an answer of an MCP server that a document names is parsed",
            1024 * 1024, 10_000, "agents/toolbox/transport.py; values by counting before parsing; 16 pages of tools, "
            "128 tools, schemas 64 KiB each and 256 KiB together",
            "the operator, whose servers these are",
        ),
        WorkSpec(
            "published document", "a document of a package is parsed with its imports and what is inside it, and built",
            None, 10_000, "source_bytes and the values of all its documents together, fs_bytes of what it shows of "
            "files, however often; 64 documents of 1,024 messages; in a thread (agents/chatmd/packed.py)",
            "the tenant's CPU seconds",
        ),
        WorkSpec(
            "upload", "a package is parsed, addressed and made what is called",
            None, None, "server.max_body_bytes, 16 MiB and 256 files; a toml file 256 KiB, with 16 KiB and 64 dots "
            "beside its texts and 4,096 backslashes; versions in parts of 64 and 8 MiB, in a thread; 32 MiB of a "
            "tenant's active scripts together",
            "the tenant's CPU seconds",
        ),
    )
}  # fmt: skip
