-- expect: ok value={"description": "real", "functions": []} describe=true
-- Declares fields through metamethods: only what the table itself holds is described.
agent = setmetatable({ description = "real" }, { __index = function() return "made up" end })
