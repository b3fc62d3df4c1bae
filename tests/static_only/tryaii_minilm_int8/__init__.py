"""Stands before the package of this name, without its weights: what a machine without the extra `embedding` has."""
