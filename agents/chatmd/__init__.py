"""ChatMD documents: read, checked, written. Nothing here runs one."""
