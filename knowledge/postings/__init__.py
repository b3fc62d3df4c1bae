"""Postings: where each word of an index stands, as arrays that ranks are computed from at the speed of memory."""
