"""Running statements: leases, slots, engine sessions, spooling."""
