"""Texts of documents: libraries that are not ours read files that are not ours, one in a confined process of its own.

A format is one file here, of the name it has in `sandbox.wire.extraction.FORMATS`: `warm_up` does in advance what
confinement forbids, `read` returns the text of a file or raises Refused. `main.py` is the process around them.
"""
