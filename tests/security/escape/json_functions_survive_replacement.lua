-- expect: ok value="{\"k\":[1,2]}"
-- Replaces what the json library is built from; the library has its own copies.
agent = {}
function agent.resolve(args, config, context)
    local encode = json.encode
    string.byte, string.format, string.find, string.gsub, table.concat = nil, nil, nil, nil, nil
    type, next, pcall, error, tonumber, utf8 = nil, nil, nil, nil, nil, nil
    return encode({ k = { 1, 2 } })
end
