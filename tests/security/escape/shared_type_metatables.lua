-- expect: ok value=[false, false, false, false] runs=2
-- Tries to give numbers, functions, booleans and coroutines a metatable, which would reach the engine's own code.
agent = {}
function agent.resolve(args, config, context)
    return {
        (pcall(function() return (5).x end)),
        (pcall(function() return print.x end)),
        (pcall(function() return (true).x end)),
        (pcall(function() return (coroutine.running()).x end)),
    }
end
