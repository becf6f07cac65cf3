"""TCLIService: structs, methods, and messages to and from bytes, for clients and for servers."""
