"""What commands change, in the audit."""

import os
import pwd
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def audited(operation: str, *subject: str | None) -> Generator[None]:
    """One audit event for what a command does inside, in the name of whoever runs it.

    `subject` are the names that it is about, such as a user and a group.
    """
    from queryserver.container.auditing import AUDIT  # noqa: PLC0415 slow to import
    from queryserver.services.auditing import AuditTrail  # noqa: PLC0415 as above

    names = " ".join(name for name in subject if name)
    with AuditTrail(AUDIT).event(operator(), operation, names, facts={"by": "command"}):
        yield


def operator() -> str:
    """The account of the operating system that runs this command."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
