"""The server itself, for administrators and clients: configuration, checks, logs."""
