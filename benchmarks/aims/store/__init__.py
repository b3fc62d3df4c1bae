"""The store of documents beside bare libraries: search, synchronisation, memory."""
