"""Fields of the calls of administrators (Contract platform 7.6, 7.7, 7.9)."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from queryserver.domain.statement import StatementState
from queryserver.domain.statement_overview import LONGEST_AGE_S, StatementStates
from queryserver.schemas.fields import Flag, TextOrNothing, Whole
from queryserver.schemas.snippets import Fields


class ServerLogsParameters(Fields):
    """Query of logs."""

    reverse: Flag = False


class InstallExamplesRequest(Fields):
    """Fields of install_app_examples."""

    app_name: TextOrNothing = None


class StatementListParameters(Fields):
    """Query of admin/statements."""

    user: Annotated[TextOrNothing, Field(description="Only statements of the user of that name.")] = None
    connector: Annotated[TextOrNothing, Field(description="Only statements of the connector of that id.")] = None
    state: Annotated[StatementStates, Field(description="`active` (those that wait or run), `all`, or one state.")] = (
        StatementStates.ACTIVE
    )
    older_than_s: Annotated[
        Annotated[int, Whole(0, LONGEST_AGE_S)] | None,
        Field(description="Only statements that were submitted that many seconds ago, or earlier."),
    ] = None
    limit: Annotated[int, Whole(1, 1000), Field(description="Most statements of one answer.")] = 100
    after: Annotated[Annotated[int, Whole(1)] | None, Field(description="`next_after` of the page before.")] = None

    @property
    def states(self) -> tuple[StatementState, ...] | None:
        """The states that are listed; None: all."""
        return self.state.states

    @property
    def older_than(self) -> timedelta | None:
        """As a duration."""
        return None if self.older_than_s is None else timedelta(seconds=self.older_than_s)
