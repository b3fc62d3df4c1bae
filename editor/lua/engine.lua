---@meta engine

-- What a script of the engine sees beside Lua's own libraries, for editors that speak LuaCATS (lua-language-server).
-- Nothing runs this file: add its folder to `workspace.library`.

-- ---- what a script is ----------------------------------------------------------------------------------------------

---One argument that a caller of an agent may give.
---@class engine.Argument
---@field name string
---@field description? string       what lists show; default ""
---@field required? boolean         refused without it, before the script runs; default false
---@field enum? string[]             the values that it may have; default: any

---One message that a conversation starts with.
---@class engine.Message
---@field role "user"|"assistant"|"system"
---@field content string

---What `agent.resolve` returns.
---@class engine.Prompt
---@field system string             the system prompt
---@field messages? engine.Message[]
---@field tools? string[]           may leave out tools of `agent.tools`, never add one; default: all of them

---An agent: set as the global `agent`, or returned by the file.
---@class engine.Agent
---@field name? string              no effect: the key in the configuration is the name
---@field title? string             what MCP clients show in place of the name
---@field description? string       what lists show
---@field tools? string[]           the tools that a client may use while this agent is active
---@field arguments? engine.Argument[]
---@field resolve? fun(args: table<string, any>, config: table<string, any>, context: engine.Context): engine.Prompt
---@field complete? fun(argument: string, value: string, context: engine.CompletionContext): string[]?
---@field [string] any

---One parameter of a tool. Every further keyword of JSON Schema may stand here: `pattern`, `items`, `properties`, ...
---@class engine.Parameter
---@field name string
---@field type? "string"|"integer"|"number"|"boolean"|"array"|"object"      default "string"
---@field required? boolean         default false
---@field description? string       what a model reads
---@field default? any              filled in where the caller leaves it out
---@field enum? any[]
---@field [string] any

---What a tool says that it does to the world, in the words of MCP.
---@class engine.ToolAnnotations
---@field readOnlyHint? boolean     changes nothing
---@field destructiveHint? boolean  may delete or overwrite
---@field idempotentHint? boolean   a second call with the same parameters changes nothing more
---@field openWorldHint? boolean    reaches beyond the engine

---A tool: set as the global `tool`, or returned by the file.
---@class engine.Tool
---@field name? string              no effect: the key in the configuration is the name
---@field title? string             what MCP clients show in place of the name
---@field description? string       what a model reads to decide whether to call it
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

-- ---- context -------------------------------------------------------------------------------------------------------

---What may be asked of the engine while `resolve` or `execute` runs. A refused or failed call is an error, which
---`pcall` catches. Each counts against the limit `host_calls`, but for `progress`; waiting for one is not CPU time.
---@class engine.Context
---@field config table<string, any>     the extra keys of the script's table in the configuration
---@field tools table<string, fun(params?: table<string, any>): any>    the tools of the script's own list, by name
local context = {}

---What `agent.complete` is given: the context, and the other arguments typed so far.
---@class engine.CompletionContext: engine.Context
---@field arguments table<string, string>

---@class engine.SearchOptions
---@field mode? "keyword"|"hybrid"|"semantic"       default "keyword"
---@field limit? integer                            1 to 100, others become the nearest; default `retrieval.final_limit`
---@field source? string                            a source's label (`git:runbooks`), name or type
---@field since? string                             changed since a date (`2026-01-31`) or an RFC 3339 time
---@field filters? { source?: string, since?: string }      another way to give these two

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

---@class engine.Chunk
---@field index integer             from 0
---@field text string

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
---@field metadata table<string, any>
---@field chunks engine.Chunk[]

---@class engine.Source
---@field source string             its label, as `git:runbooks`
---@field document_count integer
---@field chunk_count integer
---@field configured boolean
---@field healthy boolean
---@field notes? string
---@field last_sync? string         `YYYY-MM-DDTHH:MM:SSZ`

---The caller's documents that match, best first; a blank query finds none. Raises for arguments that make no sense.
---@param query string
---@param options? engine.SearchOptions
---@return engine.Hit[]
---@overload fun(arguments: engine.SearchArguments): engine.Hit[]
function context.search(query, options) end

---One document, by the `id` of a hit. Raises where there is none.
---@param id string
---@return engine.Document
---@overload fun(arguments: { id: string }): engine.Document
function context.get(id) end

---The sources of the caller's documents.
---@return engine.Source[]
function context.sources() end

---Tell the caller how far the run is. Not a host call; the first 1,000 reports of a run are sent.
---@param fraction number           0 to 1
---@param message? string           cut to 512 bytes
function context.progress(fraction, message) end

---Call a tool of the script's own list, as `context.tools.NAME(params)` does. It runs under its own grants, within this
---run's deadline and budgets. Raises for a tool that is not in the list, for wrong parameters, and where it fails.
---@param name string
---@param params? table<string, any>
---@return any answer
function context.call_tool(name, params) end

---Run functions side by side, so that their host calls are under way at once. After all have ended, the first error is
---raised; else the first value of each is in its place, and their number in `n`.
---@param functions (fun(): any)[]
---@return { n: integer, [integer]: any }
function context.parallel(functions) end

-- ---- values --------------------------------------------------------------------------------------------------------

json = {}

---Encoded as `null`; cannot be changed.
---@type table
json.null = {}

---The value of a JSON text. Raises, naming the byte.
---@param text string
---@param options? { null?: any }   what stands in for null; nil otherwise
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

---Mark a table as a list, also while it is empty, and return it.
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

-- ---- log -----------------------------------------------------------------------------------------------------------

---Lines in the run's log, which are bounded by the limit `log_bytes`. Values are joined with tabs. `print` does what
---`log.info` does.
log = {}

---@param ... any
function log.debug(...) end

---@param ... any
function log.info(...) end

---@param ... any
function log.warn(...) end

---@param ... any
function log.error(...) end

-- ---- the world, as far as it is granted ----------------------------------------------------------------------------

---Requests to the hosts that `allow_hosts` in the script's table of the configuration names. A refused host, a redirect
---to one, a failed connection, a passed deadline and an answer larger than the limit `http_bytes` are errors; an answer
---of any status is not.
http = {}

---@class engine.HttpOptions
---@field headers? table<string, string|number>
---@field params? table<string, string|number|boolean>      the query of the URL
---@field timeout? number                                   seconds for all of it; default 30, at most what is left

---@class engine.HttpResponse
---@field status integer
---@field ok boolean                        whether the status is 200 to 299
---@field headers table<string, string>     by lower-case name; several of one name are joined with ", "
---@field body string                       the bytes
---@field json? any                         the value of a body that is JSON
---@field url string                        the last one, after redirects

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

---Placeholders by the names of secrets: `secrets.TOKEN`. The engine puts the value into requests to the secret's host.
---@type table<string, string>
secrets = {}

---Environment variables that `env` in the script's table of the configuration names.
env = {}

---The value; nil where it is not set, and where it is not granted, which the log then says.
---@param name string
---@return string?
function env.get(name) end

---The files of the script's own folder, read-only. Paths are relative to it; `..` and symbolic links lead nowhere.
fs = {}

---@class engine.FileEntry
---@field name string
---@field path string               relative to the script's folder
---@field type "file"|"directory"|"symlink"|"other"
---@field size integer              bytes; 0 for what is not a file
---@field modified integer          whole seconds since 1970

---What is in a file. Raises for what is no regular file, and for one larger than the limit `fs_bytes`.
---@param path string
---@return string
function fs.read(path) end

---The entries of one folder, sorted by name.
---@param path? string              default: the script's own folder
---@param glob? string              matched against names: `*`, `?`, `[a-z]`, `{a,b}`
---@return engine.FileEntry[]
function fs.list(path, glob) end

---Wait. It counts against `timeout_s`, and is not CPU time.
---@param seconds number            0 to 86,400
function sleep(seconds) end
