-- expect: output_limit limits={output_bytes=16}
-- Returns more than the little it may.
agent = {}
function agent.resolve(args, config, context)
    return "seventeen letters and more"
end
