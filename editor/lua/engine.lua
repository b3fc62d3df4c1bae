---@meta engine

-- The engine's additions to Lua's libraries, for editors that support LuaCATS annotations (lua-language-server).
-- This file is never executed: add its folder to `workspace.library`.

-- ---- scripts -------------------------------------------------------------------------------------------------------

---One argument that a caller of an agent may give.
---@class engine.Argument
---@field name string
---@field description? string       shown in lists; default ""
---@field required? boolean         calls without it are refused before the script runs; default false
---@field enum? string[]             the values that it may have; default: any

---One message at the start of a conversation.
---@class engine.Message
---@field role "user"|"assistant"|"system"
---@field content string

---What `agent.resolve` returns.
---@class engine.Prompt
---@field system string             the system prompt
---@field messages? engine.Message[]
---@field tools? string[]           a subset of `agent.tools`; default: all of them

---An agent: set as the global `agent`, or returned by the file.
---@class engine.Agent
---@field name? string              no effect: the key in the configuration is the name
---@field title? string             shown by MCP clients instead of the name
---@field description? string       shown in lists
---@field tools? string[]           the tools that a client may use while this agent is active
---@field arguments? engine.Argument[]
---@field resolve? fun(args: table<string, any>, config: table<string, any>, context: engine.Context): engine.Prompt
---@field on_messages? fun(messages: engine.TeamMessage[], state: any, context: engine.Context): engine.TurnAnswer?
---@field complete? fun(argument: string, value: string, context: engine.CompletionContext): string[]?
---@field [string] any

---One parameter of a tool. Other keywords of JSON Schema are allowed, too: `pattern`, `items`, `properties`, ...
---@class engine.Parameter
---@field name string
---@field type? "string"|"integer"|"number"|"boolean"|"array"|"object"      default "string"
---@field required? boolean         default false
---@field description? string       read by models
---@field default? any              used if the caller does not pass the parameter
---@field enum? any[]
---@field [string] any

---The side effects that a tool declares, as in MCP.
---@class engine.ToolAnnotations
---@field readOnlyHint? boolean     changes nothing
---@field destructiveHint? boolean  may delete or overwrite
---@field idempotentHint? boolean   a second call with the same parameters has no further effect
---@field openWorldHint? boolean    reaches beyond the engine

---A tool: set as the global `tool`, or returned by the file.
---@class engine.Tool
---@field name? string              no effect: the key in the configuration is the name
---@field title? string             shown by MCP clients instead of the name
---@field description? string       read by a model to decide whether to call the tool
---@field tools? string[]           the tools that this one may call
---@field parameters? engine.Parameter[]|table<string, any>     a list, or one JSON Schema of type object
---@field returns? table<string, any>                           a JSON Schema of the answer
---@field annotations? engine.ToolAnnotations
---@field execute? fun(params: table<string, any>, context: engine.Context): any
---@field [string] any

---@type engine.Agent
agent = {}

---@type engine.Tool
tool = {}

---@class engine.Connector
---@field name? string
---@field version? string
---@field description? string
---@field scan? fun(config: table<string, any>, context: engine.Context): any
---@field [string] any

---@type engine.Connector
connector = {}

---Runs another file of the script's own folder, once a run, and returns what it returns: `require("./lib/text")`. The name
---begins with `./`, counts from the folder of the script, and is written out. A file that declares `agent` or `tool` and
---returns nothing gives that table; any other gives true.
---@param name string
---@return any
function require(name) end

-- ---- context -------------------------------------------------------------------------------------------------------

---The engine's functions for `resolve` and `execute`. A refused or failed call is an error, which `pcall` catches. Each
---call counts against the limit `host_calls`, except `progress`; waiting for one uses no CPU time.
---@class engine.Context
---@field config table<string, any>     the extra keys of the script's table in the configuration
---@field tools table<string, fun(params?: table<string, any>): any>    the tools of the script's own list, by name
---@field caller engine.Caller          the tenant, the key of the request, the run
---@field team table    the tools of the agent's turn in its team, in `agent.on_messages` alone: each returns at once
local context = {}

---@class engine.Caller
---@field tenant string
---@field agent string              the name under which this script runs: of the agent or tool
---@field run_id string
---@field key? engine.CallerKey     nil without keys, and with the operator's

---@class engine.CallerKey
---@field id string
---@field name string               its name in the audit log

---A message as a turn of a team sees it. `reply_to` is the id of the message that it answers.
---@class engine.TeamMessage
---@field from string
---@field text string
---@field message_id string
---@field kind string
---@field reply_to? string

---What `agent.on_messages` returns: what the agent keeps for its next turn, and the turn's answer.
---@class engine.TurnAnswer
---@field state? any
---@field output? string

---What `agent.complete` is given: the context, and the other arguments typed so far.
---@class engine.CompletionContext: engine.Context
---@field arguments table<string, string>

---@class engine.SearchOptions
---@field mode? "keyword"|"hybrid"|"semantic"       default `retrieval.default_mode`
---@field limit? integer                            1 to 100, others become the nearest; default `retrieval.final_limit`
---@field source? string                            a source's label (`git:runbooks`), name or type
---@field since? string                             changed since a date (`2026-01-31`) or an RFC 3339 time
---@field until? string                            changed until then
---@field path? string                             a pattern of source_ids, as `docs/**/*.md`
---@field prefix? boolean                          the last word may be half typed; default false
---@field passages? integer                        best passages of each hit, 0 to 10; default 0
---@field max_tokens? integer                      tokens of all passages, 1 to 100,000; default 4,000
---@field explain? boolean                         say in `explain` how each hit was found; default false
---@field filters? { source?: string, since?: string, until?: string, path?: string }   another way to give these four

---@class engine.SearchArguments: engine.SearchOptions
---@field query string

---A found document.
---@class engine.Hit
---@field id string
---@field source string             the label of its source, as `git:runbooks`
---@field source_id string
---@field title? string
---@field score number              0 to 1, higher is better
---@field snippet string
---@field source_url? string
---@field updated_at? string        `YYYY-MM-DDTHH:MM:SSZ`
---@field heading? string           the headings above its best chunk, as `Alpha > Beta`
---@field lines? integer[]          the first and the last line of that chunk in the body, from 1
---@field page? integer             its page, where the source has pages
---@field digest? string            SHA-256 of the body, in hexadecimal
---@field uri? string               its address as a resource of MCP
---@field passages? engine.Passage[]    if some are wanted, the best first
---@field explain? engine.Explained     if it is wanted, how the hit came by its score
---@field untrusted? boolean            true if strangers can write it

---What the mode of the search has none of is nil.
---@class engine.Explained
---@field words { word: string, df: integer, weight: number, found: boolean }[]   `df`: in how many chunks it stands
---@field bm25? number
---@field keyword_norm? number          `bm25` divided by that of the best
---@field cosine? number
---@field vector_norm? number           `cosine` divided by that of the best
---@field alpha? number                 the weight of `vector_norm`, the rest is that of `keyword_norm`
---@field complete? boolean             keyword: it has all words, so it comes first
---@field certain? boolean              hybrid: one of few with all words in one chunk, which come first

---@class engine.Passage
---@field text string
---@field heading? string
---@field lines? integer[]
---@field page? integer

---@class engine.Chunk
---@field index integer             from 0
---@field text string
---@field lines? integer[]          its first and its last line in the body, from 1
---@field heading? string           the headings above it, as `Alpha > Beta`

---@class engine.Document
---@field id string
---@field source string
---@field source_id string
---@field source_url? string
---@field title? string
---@field author? string
---@field created_at? string        `YYYY-MM-DDTHH:MM:SSZ`
---@field updated_at? string        `YYYY-MM-DDTHH:MM:SSZ`
---@field content_type string
---@field body string
---@field lines? integer[]          the first and the last line of `body`, if lines were wanted
---@field metadata table<string, any>
---@field chunks engine.Chunk[]
---@field untrusted? boolean        true if strangers can write it

---@class engine.Source
---@field source string             its label, as `git:runbooks`
---@field document_count integer
---@field chunk_count integer
---@field configured boolean
---@field healthy boolean
---@field notes? string
---@field last_sync? string         `YYYY-MM-DDTHH:MM:SSZ`
---@field last_error? string        why its last sync failed
---@field next_sync? string         `YYYY-MM-DDTHH:MM:SSZ`
---@field embedded integer          how many pieces have a vector
---@field embedding_model? string   which model made these
---@field skipped { source_id: string, reason: string }[]  the first items that its last sync did not store
---@field skipped_more integer      how many more there were
---@field untrusted boolean         whether strangers can write its documents

---The caller's documents that match, best first; a blank query finds none. Raises an error for invalid arguments.
---@param query string
---@param options? engine.SearchOptions
---@return engine.Hit[]
---@overload fun(arguments: engine.SearchArguments): engine.Hit[]
function context.search(query, options) end

---@class engine.GetOptions
---@field lines? string             only these lines of the body: `12-40`, `12-` or `12`

---One document, by the `id` of a hit. Raises an error if it does not exist, or has no such lines.
---@param id string
---@param options? engine.GetOptions
---@return engine.Document
---@overload fun(arguments: { id: string, lines?: string }): engine.Document
function context.get(id, options) end

---The sources of the caller's documents.
---@return engine.Source[]
function context.sources() end

---Report the progress of the run to the caller. Not a host call; the first 1,000 reports of a run are sent.
---@param fraction number           0 to 1
---@param message? string           cut to 512 bytes
function context.progress(fraction, message) end

---Send a message to the parent, a child or a sibling. Its reply arrives as a message of a later turn.
---@param given { recipient: string, text: string, sync?: boolean, reply_to?: string, idempotency_key?: string, deadline_s?: number }
---@return { status: string, message_id: string, waiting_for_reply: boolean }
function context.team.send_message(given) end

---Send a message to all siblings.
---@param given { text: string, idempotency_key?: string, deadline_s?: number }
---@return { status: string, message_id: string, recipient_count: integer }
function context.team.broadcast(given) end

---The messages that came since the turn began, each once.
---@param given { sender?: string, kind?: string, limit?: integer }
---@return { messages: engine.TeamMessage[] }
function context.team.check_inbox(given) end

---Create an agent below this one, which begins when the turn ends.
---@param given { name: string, instructions: string, role?: string, workspace_subdir?: string, persona?: string, runner?: string, budget?: table<string, number>, tools?: string[] }
---@return { status: string, agent_id: string, name: string }
function context.team.spawn_agent(given) end

---The state and the recent activity of a child.
---@param given { name: string }
---@return table<string, any>
function context.team.inspect_agent(given) end

---The children, with their states.
---@param given {}
---@return { children: table<string, any>[] }
function context.team.list_children(given) end

---End the agent for good; the result goes to its parent.
---@param given { result: string }
---@return { status: string }
function context.team.complete(given) end

---Let a child try again whose turn failed too often.
---@param given { agent_name: string }
---@return { status: string, agent_id: string }
function context.team.poke(given) end

---End a child and all below it.
---@param given { name: string }
---@return { status: string, name: string }
function context.team.terminate_agent(given) end

---Get a message later, once or every so many seconds.
---@param given { reason: string, timeout: number, every?: number }
---@return { status: string, reminder_id: string }
function context.team.remind_me(given) end

---Cancel a reminder of this agent.
---@param given { reminder_id: string }
---@return { status: string, reminder_id: string }
function context.team.cancel_reminder(given) end

---A file of the workspace.
---@param given { path: string }
---@return { path: string, text: string, version: integer }
function context.team.read_file(given) end

---Write a file of the workspace, when the turn ends.
---@param given { path: string, text: string, if_version?: integer }
---@return { status: string, path: string, version: integer }
function context.team.write_file(given) end

---The files of the workspace.
---@param given { glob?: string }
---@return { files: { path: string, version: integer, bytes: integer }[] }
function context.team.list_files(given) end

---Call a tool of the script's own list, as `context.tools.NAME(params)` does. It runs under its own grants, within this
---run's deadline and budgets. Raises an error for a tool that is not in the list, for wrong parameters, and if it fails.
---@param name string
---@param params? table<string, any>
---@return any answer
function context.call_tool(name, params) end

---Run functions concurrently, so that their host calls are in flight at once. After all have ended, the first error in
---the list is raised; otherwise the result has the first value of each at its index, and their number in `n`.
---@param functions (fun(): any)[]
---@return { n: integer, [integer]: any }
function context.parallel(functions) end

---Where the last scan of this connector ended; nil in the first. Only in the `scan` of a connector.
---@type any
context.checkpoint = nil

---An item that a connector found: give it to the store, and wait until there is room for the next. Only in the `scan` of
---a connector.
---@param item { source_id: string|integer, body: string, title?: string, author?: string, source_url?: string, content_type?: string, created_at?: string|number, updated_at?: string|number, metadata_json?: string, access?: string|string[] }
---@param checkpoint? any           where the next scan can go on once this item is stored
function context.emit(item, checkpoint) end

---Delete the document of an item that is gone. Only in the `scan` of a connector.
---@param source_id string|integer
function context.deleted(source_id) end

-- ---- values --------------------------------------------------------------------------------------------------------

json = {}

---Encoded as `null`; cannot be changed.
---@type table
json.null = {}

---The value of a JSON text. Raises, naming the byte.
---@param text string
---@param options? { null?: any }   replaces every null; default nil
---@return any
function json.decode(text, options) end

---The same as `json.decode`.
---@param text string
---@param options? { null?: any }
---@return any
function json.parse(text, options) end

---A JSON text in one line. Raises for a function, NaN, an infinite number, a cycle, text that is not UTF-8.
---@param value any
---@return string
function json.encode(value) end

---Mark a table as a list, even if it is empty, and return it.
---@generic T: table
---@param list T
---@return T
function json.array(list) end

base64 = {}

---Base64 with padding (RFC 4648, section 4).
---@param bytes string
---@return string
function base64.encode(bytes) end

---The bytes. White space is skipped, padding may be missing, anything else is an error.
---@param text string
---@return string
function base64.decode(text) end

---Validates a value with a JSON Schema (draft 2020-12).
---@param value any                 an empty list is `json.array({})`
---@param schema table|boolean
---@return true?                    nil where the value does not match
---@return engine.SchemaError[]?    what is wrong
function json.schema(value, schema) end

---@class engine.SchemaError
---@field path string               a JSON Pointer (RFC 6901); empty for the value itself
---@field keyword string            of the schema; empty where the value is large
---@field message string

crypto = {}

---SHA-256, as 64 lower-case hexadecimal digits.
---@param bytes string
---@return string
function crypto.sha256(bytes) end

---HMAC-SHA-256, as 64 lower-case hexadecimal digits.
---@param key string
---@param bytes string
---@return string
function crypto.hmac_sha256(key, bytes) end

-- ---- text and data -------------------------------------------------------------------------------------------------

---Regular expressions in linear time (RE2). Places are in bytes, from 1, as in Lua. Not in callbacks of `table.sort` and
---`string.gsub`.
regex = {}

---Where the first match begins and ends, then its captures; nil if there is none.
---@param text string
---@param pattern string            RE2's syntax; `(?i)` ahead ignores case
---@param init? integer             where to begin; default 1, from the end if negative
---@return integer? first
---@return integer? last
---@return string? ...
function regex.find(text, pattern, init) end

---The captures of the first match, or all of it without groups; nil if there is none.
---@param text string
---@param pattern string
---@param init? integer
---@return string? ...
function regex.match(text, pattern, init) end

---An iterator: of each match what `regex.match` returns.
---@param text string
---@param pattern string
---@return fun(): string?, ...
function regex.gmatch(text, pattern) end

---The text with matches replaced, and how many were.
---@param text string
---@param pattern string
---@param with string|number|table<string, string|number|false>|fun(...: string?): string|number|false|nil   `%0` to `%9` in a string
---@param limit? integer            at most so many
---@return string
---@return integer
function regex.gsub(text, pattern, with, limit) end

---The parts between matches.
---@param text string
---@param pattern string
---@param limit? integer            at most so many parts
---@return string[]
function regex.split(text, pattern, limit) end

---URLs in parts and back (RFC 3986).
url = {}

---@class engine.UrlParts
---@field scheme? string
---@field user? string
---@field password? string
---@field host? string
---@field port? integer
---@field path? string                      as written, not decoded
---@field query? string                     as written, without `?`
---@field params? table<string, any>        the query decoded; a name that is there several times has a list
---@field fragment? string

---The parts that are there. Raises for a text that is no URL or reference.
---@param text string
---@return engine.UrlParts
function url.parse(text) end

---The URL; `params` takes the place of `query`.
---@param parts engine.UrlParts
---@return string
function url.build(parts) end

---Percent-encoding of everything but letters, digits, `-`, `.`, `_` and `~`.
---@param text string
---@return string
function url.encode(text) end

---The text without percent-encoding.
---@param text string
---@return string
function url.decode(text) end

---A query string, its names in order; a list repeats its name.
---@param params table<string, string|number|boolean|(string|number|boolean)[]>
---@return string
function url.query(params) end

---Text by characters of Unicode.
text = {}

---The characters `i` to `j`, from the end if negative.
---@param s string
---@param i integer
---@param j? integer
---@return string
function text.sub(s, i, j) end

---How many characters there are.
---@param s string
---@return integer
function text.len(s) end

---Without white space at both ends.
---@param s string
---@return string
function text.trim(s) end

---The parts between separators.
---@param s string
---@param by? string                plain text; default: stretches of white space
---@param limit? integer            at most so many parts
---@return string[]
function text.split(s, by, limit) end

---Lines broken between words.
---@param s string
---@param width integer             characters
---@return string
function text.wrap(s, width) end

---Without the white space that all lines begin with.
---@param s string
---@return string
function text.dedent(s) end

---In capitals, by the simple mappings of Unicode.
---@param s string
---@return string
function text.upper(s) end

---In small letters, by the simple mappings of Unicode.
---@param s string
---@return string
function text.lower(s) end

---Every word with a capital.
---@param s string
---@return string
function text.title(s) end

---From 0 (nothing in common) to 1 (equal but for case).
---@param a string
---@param b string
---@return number
function text.similarity(a, b) end

---A rough estimate of the tokens that a model makes of it.
---@param s string
---@return integer
function text.tokens(s) end

---Points in time: seconds since 1970 in UTC. A zone is `"UTC"`, an offset such as `"+02:00"`, or a name such as
---`"Europe/Berlin"` (names not in callbacks).
time = {}

---@class engine.TimeParts
---@field year integer
---@field month integer
---@field day integer
---@field hour integer
---@field minute integer
---@field second integer
---@field fraction number
---@field weekday integer           Monday is 1
---@field yearday integer           from 1
---@field offset integer            of the zone, in seconds

---@class engine.TimeAmounts
---@field years? integer
---@field months? integer
---@field weeks? number
---@field days? number
---@field hours? number
---@field minutes? number
---@field seconds? number

---The time now, with a fraction.
---@return number
function time.now() end

---The time of an RFC 3339 text, or of a date alone.
---@param text string
---@return number
function time.parse(text) end

---RFC 3339.
---@param t number
---@param zone? string
---@return string
function time.format(t, zone) end

---The calendar's parts.
---@param t number
---@param zone? string
---@return engine.TimeParts
function time.parts(t, zone) end

---Later or earlier; years to days are counted in the zone's calendar.
---@param t number
---@param amounts engine.TimeAmounts
---@param zone? string
---@return number
function time.add(t, amounts, zone) end

---The seconds of a text such as `"1h30m"`, or such a text of seconds.
---@param value string|number
---@return number|string
function time.duration(value) end

---Unique identifiers (RFC 9562), as 36 characters.
uuid = {}

---Of random bits.
---@return string
function uuid.v4() end

---Of the time in milliseconds and random bits: they sort in the order in which they were made.
---@return string
function uuid.v7() end

---Hashes as lower-case hexadecimal digits. Not in callbacks of `table.sort` and `string.gsub`.
hash = {}

---MD5, 32 digits. Collisions can be made.
---@param bytes string
---@return string
function hash.md5(bytes) end

---SHA-1, 40 digits. Collisions can be made.
---@param bytes string
---@return string
function hash.sha1(bytes) end

---SHA-512, 128 digits.
---@param bytes string
---@return string
function hash.sha512(bytes) end

---BLAKE2b with 64 bytes, 128 digits.
---@param bytes string
---@return string
function hash.blake2(bytes) end

---Comma-separated values (RFC 4180).
csv = {}

---@class engine.CsvOptions
---@field header? boolean|string[]  of `parse`: whether the first row has the names; of `encode`: the names
---@field separator? string         default `","`

---The rows: lists of strings, or with `header` tables by name.
---@param text string
---@param options? engine.CsvOptions
---@return any[]
function csv.parse(text, options) end

---The text of rows, which are lists or tables by name.
---@param rows any[]
---@param options? engine.CsvOptions
---@return string
function csv.encode(rows, options) end

---Texts with places for values, after Mustache; nothing in them is executed.
template = {}

---@class engine.TemplateOptions
---@field escape? "none"|"html"|"json"|"url"|"markdown"     default `"none"`
---@field partials? table<string, string>

---The text with its values.
---@param text string
---@param values table<string, any>
---@param options? engine.TemplateOptions
---@return string
function template.render(text, values, options) end

---gzip (RFC 1952). Not in callbacks of `table.sort` and `string.gsub`.
gzip = {}

---@class engine.GzipOptions
---@field max_bytes? integer        what the data may hold; default 16,777,216

---The bytes as gzip.
---@param bytes string
---@return string
function gzip.compress(bytes) end

---What gzip or zlib holds. Raises for data that is damaged, or holds more than `max_bytes`.
---@param bytes string
---@param options? engine.GzipOptions
---@return string
function gzip.decompress(bytes, options) end

---Reads YAML (the core schema of 1.2). Not in callbacks of `table.sort` and `string.gsub`.
yaml = {}

---@class engine.YamlOptions
---@field all? boolean              the text may hold several documents; the answer is a list of them

---The value of the document in a text.
---@param text string
---@param options? engine.YamlOptions
---@return any
function yaml.parse(text, options) end

---Reads HTML as browsers do. Not in callbacks of `table.sort` and `string.gsub`.
html = {}

---@class engine.HtmlElement
---@field tag string
---@field attributes table<string, string>
---@field text string
---@field html string

---The text as a person reads it: one line a block, without scripts and styles.
---@param source string
---@return string
function html.text(source) end

---The elements that a CSS selector matches, in the order of the source.
---@param source string
---@param selector string
---@return engine.HtmlElement[]
function html.select(source, selector) end

---@class engine.RetryOptions
---@field tries? integer            default 3, at most 100
---@field base_s? number            the first wait in seconds; default 0.1, then twice the one before
---@field max_s? number             the longest wait; default 30

---Calls a function again after it raised an error, with waits between, as long as the run has time for them. `f` gets the
---number of the try. Not in callbacks of `table.sort` and `string.gsub`.
---@generic T
---@param f fun(try: integer): T
---@param options? engine.RetryOptions
---@return T
function retry(f, options) end

-- ---- log -----------------------------------------------------------------------------------------------------------

---Lines in the run's log, bounded by the limit `log_bytes`. Values are joined with tabs. `print` is the same as
---`log.info`.
log = {}

---@param ... any
function log.debug(...) end

---@param ... any
function log.info(...) end

---@param ... any
function log.warn(...) end

---@param ... any
function log.error(...) end

-- ---- granted resources ---------------------------------------------------------------------------------------------

---Requests to the hosts that `allow_hosts` in the script's table of the configuration names. A refused host, a redirect
---to one, a failed connection, a time-out and an answer larger than the limit `http_bytes` are errors; an answer of any
---status is not.
http = {}

---@class engine.HttpOptions
---@field headers? table<string, string|number>
---@field params? table<string, string|number|boolean>      the query of the URL
---@field timeout? number                                   seconds for the whole call; default 30

---@class engine.HttpResponse
---@field status integer
---@field ok boolean                        whether the status is 200 to 299
---@field headers table<string, string>     by lower-case name; several of one name are joined with ", "
---@field body string                       the bytes
---@field json? any                         the value of a JSON body
---@field url string                        the final URL, after redirects

---@param url string
---@param options? engine.HttpOptions
---@return engine.HttpResponse
function http.get(url, options) end

---@param url string
---@param options? engine.HttpOptions
---@return engine.HttpResponse
function http.delete(url, options) end

---@param url string
---@param body? string|table        a table is sent as JSON
---@param options? engine.HttpOptions
---@return engine.HttpResponse
function http.post(url, body, options) end

---@param url string
---@param body? string|table        a table is sent as JSON
---@param options? engine.HttpOptions
---@return engine.HttpResponse
function http.put(url, body, options) end

---@param url string
---@param body? string|table        a table is sent as JSON
---@param options? engine.HttpOptions
---@return engine.HttpResponse
function http.patch(url, body, options) end

---The value of an `Authorization` header (RFC 7617).
---@param user string               without a colon
---@param password string
---@return string
function http.basic_auth(user, password) end

---Placeholders by the names of secrets: `secrets.TOKEN`. The engine puts the value into requests to the secret's hosts.
---@type table<string, string>
secrets = {}

---Environment variables that `env` in the script's table of the configuration names.
env = {}

---The value; nil if it is not set, or not granted, which is then logged.
---@param name string
---@return string?
function env.get(name) end

---The files of the script's own folder, read-only. Paths are relative to it; `..` and symbolic links are errors.
fs = {}

---@class engine.FileEntry
---@field name string
---@field path string               relative to the script's folder
---@field type "file"|"directory"|"symlink"|"other"
---@field size integer              bytes; 0 for anything but a file
---@field modified integer          whole seconds since 1970

---The content of a regular file. Raises an error for anything else, and for files larger than the limit `fs_bytes`.
---@param path string
---@return string
function fs.read(path) end

---The entries of one folder, sorted by name.
---@param path? string              default: the script's own folder
---@param glob? string              matched against names: `*`, `?`, `[a-z]`, `{a,b}`
---@return engine.FileEntry[]
function fs.list(path, glob) end

---Keys with values that outlive the run, of this script and tenant alone. Granted by `kv = true`. Keys have 1 to 512 bytes,
---values 64 KiB. Versions are whole numbers that a key has only once.
kv = {}

---@class engine.KvSetOptions
---@field ttl_s? number             the key expires after so many seconds
---@field if_version? integer       change nothing unless this is the key's version; 0: unless there is no such key

---@class engine.KvDeleteOptions
---@field if_version? integer       delete nothing unless this is the key's version

---@class engine.KvListOptions
---@field limit? integer            1 to 1,000; default 100
---@field after? string             only keys after this one

---@class engine.KvEntry
---@field key string
---@field version integer
---@field bytes integer             the size of its value

---The value of a key and its version; nil if there is no such key, or it has expired.
---@param key string
---@return any value
---@return integer? version
function kv.get(key) end

---The new version. With `if_version`, if the key has another one: nil and that version, 0 if there is no such key.
---@param key string
---@param value any                 not null
---@param options? engine.KvSetOptions
---@return integer? version
---@return integer? current
function kv.set(key, value, options) end

---True if the key was deleted; otherwise false and its version, 0 if there is no such key.
---@param key string
---@param options? engine.KvDeleteOptions
---@return boolean deleted
---@return integer? current
function kv.delete(key, options) end

---Keys with a prefix in the order of their bytes, and the key to pass as `after` for the next page: nil at the end.
---@param prefix? string
---@param options? engine.KvListOptions
---@return engine.KvEntry[] keys
---@return string? after
function kv.list(prefix, options) end

---Add to an integer, from 0 if there is no such key; its expiry stays. The sum and its version.
---@param key string
---@param by? integer               default 1
---@return integer sum
---@return integer version
function kv.incr(key, by) end

---Wait. The time counts against `timeout_s`, and not as CPU time.
---@param seconds number            0 to 86,400
function sleep(seconds) end
