"""SQLite in this process, through apsw."""
