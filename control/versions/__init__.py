"""Published versions: kept as they came, one of each name active. `versions.Versions` is what agents use of them."""
