"""Login back ends of others (Contract platform 4.1)."""

import structlog

from queryserver.auth.plug_ins import PlugInThreads, TooManyWaiting, is_well_formed
from queryserver.domain.errors.base import AuthenticationFailed, InvalidUsername, LoginBackendUnavailable
from queryserver.domain.user import AuthenticatedUser
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.auth import RequestInfo

log = structlog.get_logger(__name__)


class PluggedLogin:
    """See `interfaces.auth.LoginBackend`: calls the method `login` of a class of others, sync or async."""

    def __init__(self, name: str, instance: object, threads: PlugInThreads, usernames: UsernameRule) -> None:
        self._name = name
        self._usernames = usernames
        self._login = getattr(instance, "login")  # noqa: B009 nothing else is known of it
        self._threads = threads

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """What the class says of the name by the case rule; of an illegal one it is not asked.

        Raises AuthenticationFailed, LoginBackendUnavailable for all else that it raises, and under overload.
        """
        try:
            name = self._usernames.read(username).shown
        except InvalidUsername:
            return None
        try:
            given = await self._threads.call(self._login, name, password, request)
        except AuthenticationFailed:
            raise
        except TooManyWaiting:
            raise LoginBackendUnavailable("Too many logins at once.") from None
        except Exception as error:  # code of others may raise anything
            log.exception("login back end failed", backend=self._name)
            raise LoginBackendUnavailable(f"{type(error).__name__} in {self._name}") from error
        if given is None or (isinstance(given, AuthenticatedUser) and is_well_formed(given)):
            return given
        log.error("login back end gave no AuthenticatedUser of texts", backend=self._name, given=type(given).__name__)
        raise LoginBackendUnavailable(f"{self._name} gave no AuthenticatedUser of texts")
