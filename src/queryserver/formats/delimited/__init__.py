"""Reading delimited text: encodings and records."""
