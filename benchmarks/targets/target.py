"""The exception that every target may raise."""


class Unfit(Exception):
    """The target cannot answer the scenario's requests, or refuses a key. One line, for the user."""
