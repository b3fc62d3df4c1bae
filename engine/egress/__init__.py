"""Outgoing requests of scripts, and the secrets in them."""
