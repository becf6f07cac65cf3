"""Text of files to typed Arrow values (Contract importer 12.1, 13.2)."""
