"""The control store: tenants, API keys, secrets, usage, the audit log and what else the operator decides."""
