// Lists, calls, resolves, completes, reads and cancels, with one of the TypeScript clients: `sdk` is the v1 line,
// `client` the v2 line, `client-auto` the same when it looks for 2026-07-28 first. Prints one JSON object.
// Run with `node -e`, in the folder that has the packages: they are looked for from there.

const [which, url] = process.argv.slice(-2);

async function connect() {
    const info = { name: "test", version: "1" };
    if (which === "sdk") {
        const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
        const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
        const client = new Client(info);
        await client.connect(new StreamableHTTPClientTransport(new URL(url)));
        return client;
    }
    const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
    const client = new Client(info, which === "client-auto" ? { versionNegotiation: { mode: "auto" } } : {});
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return client;
}

// The two lines pass the options of a call at different places.
function options(client, given) {
    return which === "sdk" ? [undefined, given] : [given];
}

const client = await connect();
const found = { server: client.getServerVersion()?.name };
found.tools = (await client.listTools()).tools.map((tool) => tool.name);
found.prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
found.resources = (await client.listResources()).resources.map((resource) => resource.title);
found.called = (await client.callTool({ name: "echo", arguments: { a: [1, null, "é"] } })).structuredContent;
found.number = (await client.callTool({ name: "number", arguments: {} })).structuredContent;
found.failed = (await client.callTool({ name: "raises", arguments: {} })).isError;
const prompt = await client.getPrompt({ name: "helper", arguments: { service: "api" } });
found.prompt = prompt.messages.map((message) => `${message.role}: ${message.content.text}`);
found.raw = prompt._meta["engine/prompt"].system;
const uri = (await client.listResources()).resources[0].uri;
found.read = (await client.readResource({ uri })).contents[0].text;
const ref = { type: "ref/prompt", name: "both" };
found.completed = (await client.complete({ ref, argument: { name: "severity", value: "P1" } })).completion.values;
found.missing = await client.getPrompt({ name: "helper", arguments: {} }).catch((error) => error.code);

const steps = [];
const onprogress = (progress) => steps.push(progress.progress);
await client.callTool({ name: "steps", arguments: {} }, ...options(client, { onprogress }));
found.steps = steps;

const leaving = new AbortController();
const slow = client.callTool({ name: "slow", arguments: {} }, ...options(client, { signal: leaving.signal }));
console.log("calling");
for await (const line of process.stdin) {
    if (line.includes("leave")) break;
}
leaving.abort();
found.aborted = await slow.then(() => false, () => true);

if (which === "client-auto") {
    const heard = new Promise((resolve) => {
        client.setNotificationHandler("notifications/tools/list_changed", resolve);
    });
    const subscription = await client.listen({ toolsListChanged: true });
    console.log("listening");
    await heard;
    found.heard = true;
    await subscription.close();
}
found.revision = client.getNegotiatedProtocolVersion?.() ?? null;
await client.close();
console.log(JSON.stringify(found));
process.exit(0);
