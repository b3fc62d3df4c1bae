"""MCP: its handlers, the HTTP endpoint, and the transport for two streams."""
