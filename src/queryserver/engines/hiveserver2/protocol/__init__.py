"""TCLIService: structs, methods, and the encoding of messages, for clients and servers."""
