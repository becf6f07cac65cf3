"""The log: one line per event, the ids of its call and statement in it, and no secret."""

from queryserver.logs.setup import configure_logging as configure_logging
