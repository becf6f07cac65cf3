"""Azure storage: hierarchical accounts via the DFS REST API, flat accounts via the Blob REST API."""
