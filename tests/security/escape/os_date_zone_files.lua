-- expect: ok value=["UTC", "1970-01-01 00:00:00", 0]
-- Uses local time, which would make the C library open a zone file.
agent = {}
function agent.resolve(args, config, context)
    return { os.date("%Z", 0), os.date("%Y-%m-%d %H:%M:%S", 0), os.time({ year = 1970, month = 1, day = 1, hour = 0 }) }
end
