"""The HTTP layer: parses the request, calls one service, builds the response."""
