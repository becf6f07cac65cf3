"""What is counted, as Prometheus reads it (Contract platform 9.3)."""
