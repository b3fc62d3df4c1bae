tool = { description = "Always fails" }

function tool.execute()
    error("This tool intentionally returns an error for testing", 0)
end
