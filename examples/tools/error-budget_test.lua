-- Tests of error-budget.lua, run by `engine test`: each in a fresh state, with mocks instead of the knowledge base.

local tool = require("./error-budget")

local function budget(availability, config)
    local params = { service = "payments-api", availability = availability, objective = 99.9, window_days = 28 }
    return tool.execute(params, test_context { config = config })
end

describe("error-budget", function()
    it("asks nothing while the budget is healthy", function()
        local answer = budget(99.95)
        expect(answer.verdict).to_be("healthy")
        expect(answer.remaining_percent).to_be_close_to(50, 0.1)
        expect(mock.calls("context.search")).to_have_length(0)
    end)

    it("names the runbook once the budget is at risk", function()
        mock("context.search", { { title = "Runbook: payments-api" } })
        local answer = budget(99.91)
        expect(answer).to_contain { verdict = "at risk", runbook = "Runbook: payments-api" }
        expect(mock.calls("context.search")[1]).to_contain { source = "runbooks", limit = 1 }
    end)

    it("has no runbook where none is found", function()
        mock("context.search", {})
        expect(budget(99.5).runbook).to_be_nil()
        expect(budget(99.5).verdict).to_be("spent")
    end)

    it("takes from the configuration when a service is at risk", function()
        mock("context.search", {})
        expect(budget(99.95, { at_risk_below = 0.6 }).verdict).to_be("at risk")
    end)
end)
