"""From an upload to the registry."""
