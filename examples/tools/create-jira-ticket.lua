-- A tool that writes to another system: it creates a Jira ticket that refers to related documents.
--
-- The operator grants it one host and configures the credentials (`engine.toml`, [tools.script.create_jira_ticket]).
-- Works with Jira Cloud (e-mail and API token) and with Jira Data Center (user name and password), whose API 2 takes
-- descriptions as plain text.

tool = {
    description = "Create a Jira ticket enriched with related context",
    parameters = {
        { name = "title", required = true, minLength = 1, maxLength = 255, description = "Ticket title" },
        { name = "description", default = "", description = "What happened, in plain text" },
        { name = "priority", enum = { "Low", "Medium", "High", "Critical" } },
    },
    returns = {
        type = "object",
        properties = {
            key = { type = "string" },
            url = { type = "string" },
            related_docs = { type = "integer" },
        },
        required = { "key", "url", "related_docs" },
    },
    annotations = { readOnlyHint = false, destructiveHint = false, idempotentHint = false, openWorldHint = true },
}

-- The text of the ticket, and how many documents it names. A ticket without context is better than none.
local function enriched(params, context)
    local ok, hits = pcall(context.search, params.title, { limit = context.config.related or 3 })
    if not ok then
        log.warn("no related documents:", hits)
        hits = {}
    end
    local lines = { params.description }
    if #hits > 0 then lines[#lines + 1] = "\nRelated documents:" end
    for _, hit in ipairs(hits) do
        local where = hit.source_url or (hit.source .. " " .. hit.source_id)
        lines[#lines + 1] = string.format("* %s (%s)\n  %s", hit.title or hit.source_id, where, hit.snippet)
    end
    return table.concat(lines, "\n"), #hits
end

-- Jira's errors for a request: a list of messages, and one message for each wrong field. Long ones are left out, not cut:
-- the engine redacts credentials in errors, and would not recognise one that is cut.
local function complaints(answer)
    local said = type(answer.json) == "table" and answer.json or {}
    local parts = {}
    local function add(text)
        if #text <= 200 and #parts < 5 then parts[#parts + 1] = text end
    end
    for _, message in ipairs(type(said.errorMessages) == "table" and said.errorMessages or {}) do
        add(tostring(message))
    end
    for field, message in pairs(type(said.errors) == "table" and said.errors or {}) do
        add(field .. ": " .. tostring(message))
    end
    table.sort(parts)
    return #parts > 0 and table.concat(parts, "; ") or "no reason given"
end

function tool.execute(params, context)
    local config = context.config
    if config.email == "" or config.api_token == "" then
        error("not set up: the configuration of this tool needs url, email and api_token", 0)
    end
    local base = config.url:gsub("/+$", "")
    local description, related = enriched(params, context)

    local fields = {
        project = { key = config.project },
        issuetype = { name = config.issue_type or "Task" },
        summary = params.title:gsub("%s+", " "),       -- Jira refuses line breaks here
        description = description,
    }
    if params.priority then
        fields.priority = { name = (config.priorities or {})[params.priority] or params.priority }
    end

    -- No retry: after an error here the ticket may or may not exist.
    local answer = http.post(base .. "/rest/api/2/issue", { fields = fields }, {
        headers = { Authorization = http.basic_auth(config.email, config.api_token), Accept = "application/json" },
        timeout = 10,
    })
    if answer.status == 401 or answer.status == 403 then
        error("Jira refuses the credentials of this tool (" .. answer.status .. "), or they may not create tickets", 0)
    end
    if not answer.ok then error("Jira answered " .. answer.status .. ": " .. complaints(answer), 0) end

    -- The answer is untrusted text: only the key of a ticket is passed to the caller.
    local key = type(answer.json) == "table" and answer.json.key
    if type(key) ~= "string" or #key > 64 or not key:find("^%u[%u%d_]*%-%d+$") then
        error("Jira answered " .. answer.status .. " without the key of a ticket; look there before trying again", 0)
    end
    log.info("created", key, "with", related, "related documents")
    return { key = key, url = base .. "/browse/" .. key, related_docs = related }
end
