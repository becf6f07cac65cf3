"""The task server's fleet: broker, workers, tasks, schedules and notifications (Contract platform 10)."""
