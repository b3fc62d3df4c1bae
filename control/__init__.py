"""The control store: tenants, API keys, secrets, published versions, usage and the audit log."""
