"""Packed files as the bytes that are shown of them, as streams in bounded memory (Contract storage 5.3)."""
