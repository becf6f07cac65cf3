"""Shared foundations: settings, the service database, logs, metrics, outbound connections and limits."""
