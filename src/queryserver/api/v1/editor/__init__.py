"""The SQL editor (Contract editor): statements, results, metadata. docs/architecture.md explains how to add a call."""
