"""Azure storage: hierarchical accounts over DFS REST, flat accounts over Blob REST."""
