"""Commands on language models."""
