"""Authenticators of others (Contract platform 4.2)."""

from typing import cast

import structlog

from queryserver.auth.plug_ins import Places, PlugInThreads, is_well_formed
from queryserver.domain.errors.base import AuthenticationFailed, IdentityRefused
from queryserver.domain.identities import ExternalIdentity, plug_in_issuer
from queryserver.domain.user import AuthenticatedUser, User
from queryserver.interfaces.auth import AuthRequest
from queryserver.services.arrivals import Arrivals

log = structlog.get_logger(__name__)

# A challenge adorns a 401 that is certain: nobody waits long for it, and hanging ones leave most threads to calls.
_CHALLENGE_LIMIT_S = 2.0
_CHALLENGES_AT_ONCE = 2


class PluggedCaller:
    """See `interfaces.auth.CallerSource`: calls `authenticate` of a class of others, sync or async."""

    def __init__(self, name: str, instance: object, threads: PlugInThreads, arrivals: Arrivals) -> None:
        self._name = name
        self._issuer = plug_in_issuer(name)
        self._authenticate = getattr(instance, "authenticate")  # noqa: B009 nothing else is known of it
        self._challenge = getattr(instance, "authenticate_header", None)
        self._threads = threads
        self._arrivals = arrivals
        self._challenges = Places(_CHALLENGES_AT_ONCE)

    async def caller(self, request: AuthRequest) -> User | None:
        """The user whom the class names, made at first sight; None when it names none.

        Raises AuthenticationFailed, UserNotFound (a name that is no user's), UserInactive, DatabaseUnavailable;
        RuntimeError or TypeError where the class fails or takes too long: the call fails as for any fault of ours.
        """
        try:
            given = await self._threads.call(self._authenticate, request)
        except AuthenticationFailed:
            raise
        except Exception as error:  # code of others may raise anything
            message = f"{self._name}: {type(error).__name__}"
            raise RuntimeError(message) from error
        if given is None:
            return None
        person = self._person(given)
        try:
            return await self._arrivals.user(ExternalIdentity(self._issuer, person.username), person=person)
        except IdentityRefused as refused:
            log.info("user of an authenticator refused", authenticator=self._name, reason=refused.reason)
            raise

    async def challenge(self, request: AuthRequest) -> str | None:
        """What `authenticate_header` says within 2 s; None when it fails, or gives a text that cannot be a header."""
        if not callable(self._challenge):
            return None
        try:
            text = await self._threads.call(
                self._challenge, request, limit_s=_CHALLENGE_LIMIT_S, share=self._challenges
            )
        except Exception as error:  # noqa: BLE001 the call is refused whatever happens here
            log.warning("challenge left out", authenticator=self._name, error=type(error).__name__)
            return None
        if text is None or (isinstance(text, str) and text.isascii() and text.isprintable()):
            return text
        log.error("challenge is no header", authenticator=self._name)
        return None

    def _person(self, given: object) -> AuthenticatedUser:
        """The user of the result, of which a tuple holds something of the plug-in's own beside the user."""
        pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given, None)
        person = pair[0] if len(pair) == 2 else None
        if not isinstance(person, AuthenticatedUser) or not is_well_formed(person):
            message = f"{self._name}: gave no AuthenticatedUser of texts"
            raise TypeError(message)
        return person
