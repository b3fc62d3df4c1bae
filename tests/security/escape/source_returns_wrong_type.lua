-- expect: script_error message~"neither sets the global 'agent' to a table nor returns one"
-- Returns a function instead of a table.
return function() return 1 end
