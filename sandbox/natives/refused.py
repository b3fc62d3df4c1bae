"""The error that a script gets from a library in C. Pure."""


class Refused(Exception):
    """The call cannot be answered; the text is raised in the script, where pcall can catch it."""
