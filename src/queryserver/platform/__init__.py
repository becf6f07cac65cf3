"""What every capability stands on: settings, the service database, logs, metrics, outbound connections, limits."""
