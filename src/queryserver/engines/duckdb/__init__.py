"""DuckDB in this process: one file, or a private database per session."""
