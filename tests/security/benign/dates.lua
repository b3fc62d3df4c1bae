-- expect: ok value=["2024-02-29T12:30:00Z", 1709209800, 60, 366, "Thursday", 86400.0, "29.02.24"]
-- Formats dates, counts days of a leap year and normalises fields.
agent = {}
function agent.resolve(args, config, context)
    local time = os.time({ year = 2024, month = 2, day = 29, hour = 12, min = 30, sec = 0 })
    local t = os.date("*t", time)
    local start, stop = os.time({ year = 2024, month = 1, day = 1 }), os.time({ year = 2025, month = 1, day = 1 })
    return {
        os.date("!%Y-%m-%dT%H:%M:%SZ", time), time, t.yday, (stop - start) // 86400, os.date("%A", time),
        os.difftime(os.time({ year = 2024, month = 3, day = 1 }), os.time({ year = 2024, month = 2, day = 29 })),
        os.date("%d.%m.%y", time),
    }
end
