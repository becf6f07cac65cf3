"""SQL editor calls (Contract editor): statements, results, metadata. See docs/architecture.md for how to add a call."""
