"""Files of any store: list, view, upload, move, trash."""
