---@meta
-- What `engine test` adds to the globals in files *_test.lua (docs/testing.md).

---@class engine.Expectation
---@field never engine.Expectation Turns what follows into its opposite.
---@field to_equal fun(wanted: any) The same content: tables field by field.
---@field to_be fun(wanted: any) The same value; for tables the same table.
---@field to_be_nil fun() nil.
---@field to_be_truthy fun() Neither nil nor false.
---@field to_match fun(pattern: string) A string that matches the Lua pattern.
---@field to_contain fun(wanted: any) A text with this text, a list with an equal item, or a table with all these fields.
---@field to_have_length fun(length: integer) A string or table of this length.
---@field to_be_close_to fun(wanted: number, within?: number) A number at most `within` (1e-9) away.
---@field to_raise fun(text?: string) A function that raises an error, with this text or pattern in it.
---@field not_to_equal fun(wanted: any) The opposite of `to_equal`.
---@field not_to_be fun(wanted: any) The opposite of `to_be`.
---@field not_to_be_nil fun() The opposite of `to_be_nil`.
---@field not_to_be_truthy fun() The opposite of `to_be_truthy`.
---@field not_to_match fun(pattern: string) The opposite of `to_match`.
---@field not_to_contain fun(wanted: any) The opposite of `to_contain`.
---@field not_to_have_length fun(length: integer) The opposite of `to_have_length`.
---@field not_to_be_close_to fun(wanted: number, within?: number) The opposite of `to_be_close_to`.
---@field not_to_raise fun(text?: string) The opposite of `to_raise`.

---@param value any
---@return engine.Expectation
function expect(value) end

---A group of tests: `f` declares them. Groups nest.
---@class engine.Describe
---@field skip fun(name: string, f: fun()) A group that is not run.
---@overload fun(name: string, f: fun())
describe = {}

---A test. It runs in a fresh Lua state.
---@class engine.It
---@field skip fun(name: string, f?: fun()) A test that is not run.
---@overload fun(name: string, f: fun())
it = {}

---Runs `f` before each test of the group.
---@param f fun()
function before_each(f) end

---Runs `f` after each test of the group, failed ones too.
---@param f fun()
function after_each(f) end

---Ends the test as skipped.
---@param reason? string
function skip(reason) end

---Answers calls of a host call (`http.get`) or of a tool (`context.tools.NAME`) until the test ends: with the reply, or
---with what a function returns for the call's arguments.
---@class engine.Mock
---@field calls fun(name: string): table[] The arguments of each call in this test.
---@field secrets fun(values: table<string, string>) What `secrets.NAME` is in this test.
---@overload fun(name: string, reply?: any)
mock = {}

---@class engine.TestContextOptions
---@field config? table<string, any> `context.config`.
---@field tools? string[] The names in `context.tools`.
---@field arguments? table<string, any> `context.arguments`, as `complete` gets it.

---A context whose calls are answered by mocks.
---@param options? engine.TestContextOptions
---@return engine.Context
function test_context(options) end
