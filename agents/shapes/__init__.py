"""Validation of scripts' declarations and answers, and of callers' parameters."""
