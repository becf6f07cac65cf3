"""The fleet: broker, workers, tasks, schedules and what is sent about them (Contract platform 10)."""
