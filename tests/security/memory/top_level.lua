-- expect: memory_limit
-- Fills the memory in the chunk itself.
local t = {}
while true do t[#t + 1] = { t } end
