"""The SQL editor (Contract editor): statements, results, metadata. docs/architecture.md says how to add a call."""
