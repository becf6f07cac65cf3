"""The SQL editor (Contract editor): statements, results, metadata."""
