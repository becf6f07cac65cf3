"""Who is calling: login back ends, tokens, passwords. What plug-ins import stands here (docs/authentication.md)."""

from queryserver.domain.errors.base import AuthenticationFailed as AuthenticationFailed
from queryserver.domain.user import AuthenticatedUser as AuthenticatedUser
