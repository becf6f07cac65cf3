"""Storage calls: files in any store (Contract storage)."""
