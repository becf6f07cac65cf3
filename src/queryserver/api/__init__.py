"""HTTP only: parse, call one service, shape the answer."""
