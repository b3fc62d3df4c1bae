"""The output of `engine agent|tool|connector init`: a commented script that works unchanged, and its tests."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agents.tools.builtin import NAMES
from cli.options import shown
from cli.output import UNUSABLE, Exit, say
from cli.scripts.run import Kind
from engine.config import Agents, LoadedConfig
from engine.names import valid_name

# Type definitions for editors. Beside the packages, both in a checkout and in an installation.
EDITOR = Path(__file__).resolve().parents[2] / "editor" / "lua"

AGENT = """\
-- <NAME>: an agent. It makes the prompt that a conversation starts with.
--
--   engine agent test <NAME> --arg topic=deployment     what it answers
--   engine agent dev <NAME> --arg topic=deployment      the same, again on every save of this file
--   engine test                                         the tests in <NAME>_test.lua
--
-- This file runs once when the engine starts, to read the table below, and again for every prompt, each time in a new
-- Lua 5.4 state: a variable does not keep its value until the next run.

agent = {}

agent.description = "Answers questions about a topic from the knowledge base"

-- The tools that a client may use while this agent is active.
agent.tools = { "search", "get" }

-- The arguments that a caller may give. Required ones are checked before resolve is called.
agent.arguments = {
    { name = "topic", description = "What to look up beforehand", required = false },
}

---@param args table<string, any>      the caller's arguments, by name
---@param config table<string, any>    the extra keys of this agent's table in the configuration
---@param context engine.Context       the engine's functions: search, get, sources, ...
---@return engine.Prompt
function agent.resolve(args, config, context)
    local messages = {}

    if args.topic then
        local found = context.search(args.topic, { limit = config.search_limit or 3 })
        log.info("read " .. #found .. " documents about " .. args.topic) -- `agent test` and `agent dev` show it
        local parts = {}
        for i, hit in ipairs(found) do
            local document = context.get(hit.id)
            parts[i] = "## " .. (document.title or "Untitled") .. "\\n" .. document.body
        end
        messages[1] = {
            role = "assistant",
            content = string.format("I have read %d documents about %s.\\n\\n%s",
                #found, args.topic, table.concat(parts, "\\n\\n")),
        }
    end

    return {
        system = "You answer questions from this project's documents. Search before you answer; cite what you used.",
        messages = messages,
    }
end

<MORE>
return agent
"""

TOOL = """\
-- <NAME>: a tool. A model calls it by name with parameters, and reads its answer.
--
--   engine tool test <NAME> --param topic=deployment     what it answers
--   engine tool dev <NAME> --param topic=deployment      the same, again on every save of this file
--   engine test                                          the tests in <NAME>_test.lua
--
-- This file runs once when the engine starts, to read the table below, and again for every call, each time in a new
-- Lua 5.4 state: a variable does not keep its value until the next run.

tool = {}

-- What a model reads to decide whether to call it.
tool.description = "Say what the knowledge base has on a topic: how many documents, and the best of them"

-- Checked before execute is called, and defaults are filled in. `type` is string, integer, number, boolean, array or
-- object; `required = true`, `enum = { "a", "b" }` and every other keyword of JSON Schema may stand here, too.
tool.parameters = {
    { name = "topic", type = "string", default = "deployment", minLength = 1, description = "What to look for" },
    { name = "limit", type = "integer", default = 3, minimum = 1, maximum = 20, description = "Documents at most" },
}

-- Optional: a JSON Schema of the answer. MCP clients receive it, and an answer that does not match it is an error.
tool.returns = {
    type = "object",
    properties = {
        count = { type = "integer" },
        documents = { type = "array", items = { type = "object" } },
    },
    required = { "count", "documents" },
}

---@param params table<string, any>    the caller's parameters, by name
---@param context engine.Context       the engine's functions: search, get, sources, ..., and
---                                    context.config: the extra keys of this tool's table in the configuration
---@return any answer                  any JSON value
function tool.execute(params, context)
    local hits = context.search(params.topic, { limit = params.limit })
    log.info("found " .. #hits .. " documents about " .. params.topic) -- `tool test` and `tool dev` show it

    local documents = json.array({}) -- so that an empty one is [] and not {}
    for i, hit in ipairs(hits) do
        context.progress(i / #hits, "document " .. i)
        documents[i] = { id = hit.id, title = hit.title or hit.source_id, score = hit.score }
    end
    return { count = #documents, documents = documents }
end

<MORE>
return tool
"""

AGENT_TEST = """\
-- Tests of <NAME>.lua, which `engine test` runs: each in a new Lua state, with mocks instead of host calls.

local agent = require("./<NAME>")

describe("<NAME>", function()
    it("reads the documents about the topic", function()
        mock("context.search", { { id = "1" } })
        mock("context.get", { title = "Deploying", body = "On Tuesdays." })
        local prompt = agent.resolve({ topic = "deployment" }, {}, test_context())
        expect(prompt.messages[1].content).to_contain("## Deploying\\nOn Tuesdays.")
        expect(mock.calls("context.search")[1]).to_contain { query = "deployment", limit = 3 }
    end)

    it("needs no topic", function()
        expect(agent.resolve({}, {}, test_context()).messages).to_have_length(0)
    end)
end)
"""

TOOL_TEST = """\
-- Tests of <NAME>.lua, which `engine test` runs: each in a new Lua state, with mocks instead of host calls.

local tool = require("./<NAME>")

describe("<NAME>", function()
    it("counts the documents", function()
        mock("context.search", { { id = "1", title = "Deploying", score = 0.9 } })
        local answer = tool.execute({ topic = "deployment", limit = 3 }, test_context())
        expect(answer).to_equal { count = 1, documents = { { id = "1", title = "Deploying", score = 0.9 } } }
    end)

    it("counts none", function()
        mock("context.search", {})
        expect(tool.execute({ topic = "deployment", limit = 3 }, test_context()).count).to_be(0)
    end)
end)
"""

CONNECTOR = """\
-- <NAME>: a connector. `engine sync` runs its scan, which gives documents to the knowledge store.
--
--   engine connector test <NAME>       what it finds; nothing is written
--   engine sync script:<NAME>          store it
--
-- A scan begins in a new Lua 5.4 state: a variable does not keep its value until the next one. What it needs to go on
-- where it ended is in context.checkpoint.

connector = {
    description = "Notes, as an example",
}

---@param config table<string, any>    the extra keys of this connector's table in the configuration
---@param context engine.Context
function connector.scan(config, context)
    local last = tonumber(config.count) or 3
    for n = (context.checkpoint or 0) + 1, last do
        -- With a checkpoint, a scan that is interrupted goes on after the last item that was stored.
        context.emit({
            source_id = "note-" .. n,               -- its name in this source, the same at every scan
            title = "Note " .. n,
            body = "# Note " .. n .. "\\n\\nThe text that is searched.",
            content_type = "text/markdown",
            updated_at = "2026-01-31T12:00:00Z",
        }, n)
    end
    log.info("up to note", last)
    -- With complete = true, documents that this scan did not emit would be deleted: for scans that emit everything.
    return { checkpoint = last }
end

-- From an API, with allow_hosts = ["api.example.com"] and token = "${API_TOKEN}" in its table of the configuration:
--
--   local answer = http.get("https://api.example.com/tickets", {
--       headers = { Authorization = "Bearer " .. config.token },
--       params = { since = context.checkpoint or "" },
--   })
--   if not answer.ok then error("the API answered " .. answer.status) end
--   for _, ticket in ipairs(answer.json) do
--       if ticket.removed then context.deleted(ticket.id) else context.emit({ ... }, ticket.changed) end
--   end
"""

# What a script can do beyond computing and the knowledge base; appended to both templates.
MORE = """\
-- Also here, without a grant:
--   json, base64, crypto, log, print, os.time, os.date, string, table, math, utf8, coroutine
--   sleep(seconds)
--   context.parallel{ f, g }         the host calls of several functions at once
--   context.tools.NAME(params)       a tool that <KIND>.tools lists
--   fs.read("words.txt"), fs.list(".", "*.txt")       the files beside this one
--
-- With a grant in this script's table of the configuration:
--   http.get(url, { headers = {}, params = {}, timeout = 10 }), http.post(url, body), put, patch, delete
--                                    allow_hosts = ["api.example.com"]
--   env.get("API_TOKEN")             env = ["API_TOKEN"]
--
-- A refused or failed call is an error, which pcall catches:
--   local ok, answer = pcall(http.get, "https://api.example.com/status")
--   if not ok then log.warn(answer) end

"""

# It loads without a model and without documents in the knowledge base.
DOCUMENT = """\
<!-- Answers questions from the knowledge base -->
<tool name="search"/>
<tool name="get"/>

<system>You answer questions from this project's documents. Search before you answer; cite what you used.</system>
"""

_TEMPLATES: Mapping[str, str] = {"agent": AGENT, "tool": TOOL}
_TESTS: Mapping[str, str] = {"agent": AGENT_TEST, "tool": TOOL_TEST}


def begin(kind: Kind, name: str, loaded: LoadedConfig) -> None:
    """Write a template script and its tests under the configuration's root, and print what to add to the configuration.

    Raises Exit for a name that cannot be configured, and for a file that exists.
    """
    if (wrong := _wrong(kind, name)) is not None:
        raise Exit(UNUSABLE, wrong)
    path = loaded.root / kind.section / f"{name}.lua"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(source(kind, name))
    except FileExistsError:
        raise Exit(UNUSABLE, f"{shown(path)} exists and is left as it is") from None
    say(f"Created: {shown(path)}")
    with suppress(FileExistsError), path.with_name(f"{name}_test.lua").open("x", encoding="utf-8") as file:
        file.write(tests(kind, name))
        say(f"Created: {shown(Path(file.name))}")
    say(f'For completion in your editor, set in lua-language-server: "workspace.library": ["{EDITOR}"]')
    say("Add to config:")
    say()
    say(f'  [{kind.section}.script.{_key(name)}]\n  path = "{kind.section}/{name}.lua"\n  timeout = 30')


def begin_document(kind: Kind, name: str, loaded: LoadedConfig) -> None:
    """Write a document to start from under the configuration's root, and print what to add, unless it is in the folder
    of documents. Raises Exit as `begin` does.
    """
    if (wrong := _wrong(kind, name) or ("'dir' is a reserved name" if name == "dir" else None)) is not None:
        raise Exit(UNUSABLE, wrong)
    folder = loaded.config.agents.chatmd.dir
    path = (folder or loaded.root / "prompts") / f"{name}.chatmd"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(DOCUMENT)
    except FileExistsError:
        raise Exit(UNUSABLE, f"{shown(path)} exists and is left as it is") from None
    say(f"Created: {shown(path)}")
    if folder is None:
        say("Add to config:")
        say()
        say(f'  [{kind.section}.chatmd.{_key(name)}]\n  path = "prompts/{name}.chatmd"')


def source(kind: Kind, name: str) -> str:
    """The script of an agent or tool of this name."""
    return _TEMPLATES[kind.word].replace("<MORE>\n", MORE).replace("<KIND>", kind.word).replace("<NAME>", name)


def tests(kind: Kind, name: str) -> str:
    """The tests of that script."""
    return _TESTS[kind.word].replace("<NAME>", name)


def _key(name: str) -> str:
    """A name as a key of TOML: bare, unless it has a dot, which would mean a nested table."""
    return f'"{name}"' if "." in name else name


def _wrong(kind: Kind, name: str) -> str | None:
    """The reason why this cannot be the name of an agent or tool, or None."""
    if not valid_name(name):
        return f"{name!r} is not a name: 1 to 64 letters, digits, '_', '.' or '-'"
    if kind.word == "agent" and name in Agents.model_fields:
        return f"{name!r} is a reserved name"
    if kind.word == "tool" and name in NAMES:
        return f"{name!r} is the name of a builtin tool"
    return None


def begin_connector(name: str, loaded: LoadedConfig) -> None:
    """Write a template of a connector, and print what to add to the configuration. Raises Exit as `begin` does."""
    if not valid_name(name):
        raise Exit(UNUSABLE, f"{name!r} is not a name: 1 to 64 letters, digits, '_', '.' or '-'")
    path = loaded.root / "connectors" / f"{name}.lua"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(CONNECTOR.replace("<NAME>", name))
    except FileExistsError:
        raise Exit(UNUSABLE, f"{shown(path)} exists and is left as it is") from None
    say(f"Created: {shown(path)}")
    say(f'For completion in your editor, set in lua-language-server: "workspace.library": ["{EDITOR}"]')
    say("Add to config:")
    say()
    say(f'  [connectors.script.{_key(name)}]\n  path = "connectors/{name}.lua"\n  timeout = 60\n  count = 3')
