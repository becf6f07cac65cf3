"""Text that is cut into records and cells by separators."""
