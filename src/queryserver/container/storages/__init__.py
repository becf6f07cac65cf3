"""One module for each store: `build(settings)` gives its FileSystem, or None when it is not configured."""
