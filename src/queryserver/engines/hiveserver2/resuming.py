"""What another process needs to go on with a statement, as text."""

import json
from dataclasses import dataclass
from typing import Any

from queryserver.domain.errors.statements import OutcomeUnknown
from queryserver.engines.hiveserver2.address import Member
from queryserver.engines.hiveserver2.errors import EXPIRED
from queryserver.engines.hiveserver2.protocol.status import (
    THandleIdentifier,
    TOperationHandle,
    TOperationType,
    TSessionHandle,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A statement, its session, and the member that has both."""

    member: Member
    session: TSessionHandle
    operation: TOperationHandle

    def to_text(self) -> str:
        """JSON."""
        values = {
            "host": self.member.host,
            "port": self.member.port,
            "session": _hex(self.session.session_id),
            "operation": _hex(self.operation.operation_id),
            "has_result_set": self.operation.has_result_set,
        }
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_text(cls, token: str) -> "Mark":
        """Raises OutcomeUnknown for a text that is no mark."""
        try:
            values: dict[str, Any] = json.loads(token)
            return cls(
                Member(str(values["host"]), int(values["port"])),
                TSessionHandle(session_id=_identifier(values["session"])),
                TOperationHandle(
                    operation_id=_identifier(values["operation"]),
                    operation_type=TOperationType.EXECUTE_STATEMENT,
                    has_result_set=bool(values["has_result_set"]),
                ),
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise OutcomeUnknown(EXPIRED) from error


def _hex(identifier: THandleIdentifier) -> list[str]:
    return [identifier.guid.hex(), identifier.secret.hex()]


def _identifier(texts: list[str]) -> THandleIdentifier:
    guid, secret = texts
    return THandleIdentifier(guid=bytes.fromhex(guid), secret=bytes.fromhex(secret))
