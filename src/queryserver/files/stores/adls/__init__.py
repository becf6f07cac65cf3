"""Azure storage: hierarchical accounts via DFS REST, and flat accounts via Blob REST."""
