"""Connections of clients: HTTP/1.1 with limits in time and size for everything that a client can make grow."""
