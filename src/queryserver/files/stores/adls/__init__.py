"""Azure storage: hierarchical accounts through DFS REST, flat accounts through Blob REST."""
