"""`engine chatmd`: documents in ChatMD."""
