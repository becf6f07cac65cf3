"""Structs, methods and message encoding of TCLIService, for clients and servers."""
