"""Vectors as arrays in a mapped file, and lists of those that lie near each other, so that a search reads a part."""
