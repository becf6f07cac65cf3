"""What is written down at the end of each statement (Contract platform 11)."""

import structlog

from queryserver.domain.statement_end import StatementEnd
from queryserver.services.auditing import AuditTrail

log = structlog.get_logger(__name__)


class StatementEnds:
    """Writes an audit event for each end, and a line of the log where the audit has a file of its own."""

    def __init__(self, audit: AuditTrail, *, with_log_line: bool) -> None:
        self._audit = audit
        self._with_log_line = with_log_line

    def record(self, end: StatementEnd) -> None:
        """Write the end; `size` of the event is that of the stored rows."""
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        self._audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if self._with_log_line:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)
