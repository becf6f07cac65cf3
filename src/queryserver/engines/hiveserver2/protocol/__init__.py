"""TCLIService's structs, methods and message encoding, for clients and servers."""
