"""REST and MCP over HTTP, MCP over stdio."""
