agent = {
    description = "A prompt with two arguments",
    arguments = { { name = "arg1", required = true }, { name = "arg2", required = true } },
}

function agent.resolve(args)
    return { system = string.format("Prompt with arguments: arg1='%s', arg2='%s'", args.arg1, args.arg2) }
end

function agent.complete(argument, value)
    return { value .. "-one", value .. "-two" }
end
