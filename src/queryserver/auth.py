"""The names that custom authenticators and login back ends import (docs/authentication.md, Contract platform 4.2)."""

from queryserver.errors.base import AuthenticationFailed
from queryserver.identity.model import AuthenticatedUser

__all__ = ["AuthenticatedUser", "AuthenticationFailed"]
