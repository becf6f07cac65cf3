"""What can end a run without ending the statement."""


class LeaseLost(Exception):
    """Another runner has the statement, or its state is settled: this run writes nothing more."""
