"""SQLite in separate processes, through apsw."""
