"""The command-line program `engine`."""
