"""Storage calls: files and directories in any store (Contract storage)."""
