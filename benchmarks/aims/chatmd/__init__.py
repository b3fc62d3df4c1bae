"""The rows of the table of aims that are of ChatMD documents."""
