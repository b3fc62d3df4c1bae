"""The schedule of requests, and the account of their outcomes."""
