"""Libraries for scripts: what they cost."""
