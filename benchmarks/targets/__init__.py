"""The targets of a load: REST, MCP, a pool."""
