tool = { description = "Answers with a text" }

function tool.execute()
    return "This is a simple text response for testing."
end
