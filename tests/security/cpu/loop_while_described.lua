-- expect: cpu_limit describe=true
-- Loops while the engine only asks what the script declares.
agent = { description = "never said" }
for i = 1, math.huge do agent.name = i end
