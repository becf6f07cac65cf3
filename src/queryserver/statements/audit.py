"""Audit events about the ends of statements."""

import structlog

from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.tree import Settings
from queryserver.statements.model import OnEnd, StatementEnd

log = structlog.get_logger(__name__)


def statement_ends(settings: Settings) -> OnEnd:
    """Writes an audit event for each end, and a log line if audit events go to a separate file."""
    audit, has_file = AUDIT, settings.desktop.logging.audit_file is not None

    def record(end: StatementEnd) -> None:
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,  # size of the stored rows
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if has_file:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)

    return record
