-- A tool: a model calls it by name with parameters, which the engine checks first.
--
-- Computes what is left of a service's error budget, and finds the runbook to open if it is nearly gone.

tool = {
    description = "Work out how much of a service's error budget is left over a window, and which runbook applies",
    parameters = {
        { name = "service", description = "The service, as in the runbooks (payments-api)", required = true },
        {
            name = "availability", type = "number", required = true, minimum = 0, maximum = 100,
            description = "Measured availability over the window, in percent",
        },
        {
            name = "objective", type = "number", default = 99.95, minimum = 90, maximum = 99.999,
            description = "The objective, in percent",
        },
        { name = "window_days", type = "integer", default = 28, minimum = 1, maximum = 90 },
    },
    returns = {
        type = "object",
        properties = {
            remaining_percent = { type = "number" },
            minutes_left = { type = "number" },
            verdict = { type = "string", enum = { "healthy", "at risk", "spent" } },
            runbook = { type = { "string", "null" } },
        },
        required = { "remaining_percent", "minutes_left", "verdict" },
    },
}

function tool.execute(params, context)
    local allowed = 100 - params.objective
    local used = 100 - params.availability
    local left = (allowed - used) / allowed
    local at_risk = context.config.at_risk_below or 0.25
    local verdict = left <= 0 and "spent" or left < at_risk and "at risk" or "healthy"

    local runbook
    if verdict ~= "healthy" then
        local hits = context.search(params.service .. " incident runbook", { source = "runbooks", limit = 1 })
        runbook = hits[1] and hits[1].title
        log.info(params.service, "is", verdict)
    end

    return {
        remaining_percent = math.floor(left * 1000 + 0.5) / 10,
        minutes_left = math.floor(left * allowed / 100 * params.window_days * 24 * 60 * 10 + 0.5) / 10,
        verdict = verdict,
        runbook = runbook,
    }
end
