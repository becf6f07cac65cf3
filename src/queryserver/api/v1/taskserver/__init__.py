"""The task server, and the space for uploads (Contract platform 10.6 to 10.8, storage 9.3)."""
