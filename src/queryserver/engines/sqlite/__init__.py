"""SQLite through apsw, in a separate process."""
