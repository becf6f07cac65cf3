"""Store-independent file operations: list, view, upload, move and trash."""
