"""What login back ends and authenticators of other authors import (docs/authentication.md)."""

from queryserver.errors.base import AuthenticationFailed as AuthenticationFailed
from queryserver.identity.model import AuthenticatedUser as AuthenticatedUser
