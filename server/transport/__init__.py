"""Connections, and HTTP/1.1 on them."""
