"""From files to the registry."""
