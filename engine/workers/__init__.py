"""Processes that run scripts."""
