"""SQLite on trio, for every store."""
