"""How long a stop may take (Contract platform 9.5)."""

STATEMENTS_STOPPED_WITHIN_S = 5.0
"""After the grace: for engines to confirm that the statements still running were canceled."""

STATEMENTS_RECORDED_WITHIN_S = 1.5
"""For the end of the statements whose engine did not confirm."""

SESSIONS_CLOSED_WITHIN_S = 1.5
"""For engine sessions, and for the leases of this process."""

CALLS_ANSWERED_WITHIN_S = 3.0
"""For calls that are still under way when statements have used up the grace."""

ENGINES_CLOSED_WITHIN_S = 2.0
"""For connections, and for threads inside drivers."""

REST_S = 15.0
"""Everything after the grace, with what else is closed. The process ends then, whatever still runs in it."""
