"""How well searches answer questions whose answers are known, beside other rules: `python -m benchmarks.quality`."""
