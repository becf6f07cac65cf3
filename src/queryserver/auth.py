"""What authenticators and login back ends of users import (docs/authentication.md, Contract platform 4.1)."""

from queryserver.errors.base import AuthenticationFailed as AuthenticationFailed
from queryserver.identity.model import AuthenticatedUser as AuthenticatedUser
