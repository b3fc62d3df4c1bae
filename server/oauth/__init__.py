"""Tokens of OAuth issuers beside API keys: read, verified, and what their claims grant."""
