"""Administration of the server: configuration for clients, checks, logs."""
