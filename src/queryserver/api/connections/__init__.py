"""Client connections: HTTP/1.1 with time and size limits on every resource that a client can consume."""
