tool = { description = "Reports progress in three steps" }

function tool.execute(params, context)
    for step, fraction in ipairs({ 0, 0.5, 1 }) do
        if step > 1 then sleep(0.05) end
        context.progress(fraction, "step " .. step)
    end
    return "done"
end
