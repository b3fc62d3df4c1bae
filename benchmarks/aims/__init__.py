"""`make bench`: the engine beside its floor, its peers and itself."""
