-- expect: ok value=[1, 2]
-- Replaces _ENV by its own table and a function's environment by an upvalue.
local answer = { 1, 2 }
local resolve
do
    local _ENV = { answer = answer }
    function resolve() return answer end
end
_ENV = { agent = { resolve = resolve } }
return agent
