"""Client connections: HTTP/1.1 with time and size limits on all resources that a client can consume."""
