"""The parts of `engine agent` and `engine tool` that work on one script."""
