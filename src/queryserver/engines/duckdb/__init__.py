"""DuckDB in separate processes: one database file, or a private database per session."""
