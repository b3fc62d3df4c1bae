-- expect: cpu_limit
-- Loops in the chunk itself, before any agent is declared.
local n = 0
while true do n = n + 1 end
