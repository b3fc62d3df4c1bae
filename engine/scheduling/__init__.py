"""Which runs compute now."""
