"""The fleet: broker, workers, tasks, schedules and their notifications (Contract platform 10)."""
