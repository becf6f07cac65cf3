"""HTTP only: parse the request, call one service, build the response."""
