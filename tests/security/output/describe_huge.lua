-- expect: output_limit describe=true
-- Declares a description of two megabytes.
agent = { description = ("x"):rep(2000000) }
