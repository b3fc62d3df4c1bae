-- expect: script_error message~"agent.tools[1] is a function" describe=true
-- Declares tools that are no texts.
agent = { name = 5, description = {}, tools = { print } }
