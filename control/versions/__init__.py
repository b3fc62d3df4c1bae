"""Published versions: stored unchanged, at most one of each name active. The interface is `versions.Versions`."""
