"""Files of any store (Contract storage)."""
