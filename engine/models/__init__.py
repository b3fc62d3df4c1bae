"""Language models behind one call: a request in, a stream of events out. One file a wire."""
