"""The first administrator of the embedded mode (Contract platform 3.10)."""

import secrets
import string
from collections.abc import Callable

from queryserver.container.auditing import AUDIT
from queryserver.services.accounts import Accounts
from queryserver.services.auditing import BY_SERVER, AuditTrail

NAME = "admin"
_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 20


async def ensure_administrator(accounts: Accounts, given: str | None, tell: Callable[[str], None]) -> None:
    """Make `admin` when there is no user at all.

    A random password is told once and kept as a hash only; a `given` one is not told. Raises InvalidPassword.
    """
    password = given or "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
    if not await accounts.create_first(NAME, password):
        return
    trail = AuditTrail(AUDIT)
    for operation in ("user.create", "user.make_admin"):
        trail.record(NAME, operation, NAME, facts=BY_SERVER)
    if given is None:
        tell(f"Administrator: {NAME}\nPassword:      {password}\nThe password is shown this once only.")
