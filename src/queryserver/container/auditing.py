"""Where audit events go."""

from queryserver.interfaces.audit import Audit
from queryserver.logs.audit import AuditLog

AUDIT: Audit = AuditLog()
"""The one that all services write to; `configure_logging` says which file that is."""
