"""Results: JSON, text, pages, comparison and thresholds."""
