"""The confined process of a sentence model."""
