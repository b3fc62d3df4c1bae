-- expect: script_error message~"overflow" fill={"<NOT>": ["not ", 200000]}
-- Chains two hundred thousand unary operators.
agent = { resolve = function() return <NOT>true end }
