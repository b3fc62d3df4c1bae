-- expect: output_limit limit="value_depth" describe=true
-- Declares a list of tools that contains itself.
agent = { tools = {} }
agent.tools[1] = agent.tools
