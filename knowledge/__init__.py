"""Documents and their search."""
