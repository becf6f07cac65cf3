"""Loads and calls the administrator's plug-ins: login back ends and authenticators (Contract platform 4.1, 4.2)."""

import asyncio
import importlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import structlog

from queryserver import errors
from queryserver.identity import model
from queryserver.identity.provisioning import Provisioning
from queryserver.identity.threads import LimitedThreads, TooManyWaiting
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def is_well_formed(person: model.AuthenticatedUser) -> bool:
    """Return whether all fields are strings that can be stored. The plug-in may not be type-checked."""
    texts: list[object] = [person.username, person.first_name, person.last_name, person.email]
    groups: object = person.groups
    if isinstance(groups, Collection) and not isinstance(groups, str | bytes | Mapping):
        texts += groups
    elif groups is not None:
        return False
    # UTF-8 cannot encode lone surrogates, and PostgreSQL cannot store NUL.
    return all(
        isinstance(text, str) and "\0" not in text and text == text.encode("utf-8", "replace").decode()
        for text in texts
    )


@asynccontextmanager
async def open_plug_in(
    key: str, name: str, *, settings: Settings, threads: LimitedThreads, method: str
) -> AsyncGenerator[object]:
    """Instantiate a plug-in class as the contract specifies; close the instance on exit.

    Raises ConfigurationError with `key` if the class cannot be loaded or instantiated, or has no `method`.
    """
    try:
        # In a thread, because an import reads files and may take a long time.
        kind = await asyncio.to_thread(_load, name)
        parameters = inspect.signature(kind).parameters.values()
        instance = kind(settings) if any(one.kind in _POSITIONAL for one in parameters) else kind()
    except Exception as error:  # importing or instantiating a plug-in may raise anything
        text = str(error).partition("\n")[0][:300].rstrip(".")
        reason = f"{type(error).__name__}{': ' if text else ''}{text}."
        raise errors.ConfigurationError([f"{key}: {name} cannot be loaded: {reason}"]) from error
    if not callable(getattr(instance, method, None)):
        raise errors.ConfigurationError([f"{key}: {name} cannot be loaded: it has no method {method}."])
    try:
        yield instance
    finally:
        if callable(close := getattr(instance, "close", None)):
            try:
                await threads.call(cast("Callable[[], Awaitable[None]]", close))
            except Exception:  # an error in one plug-in must not prevent others from being closed
                log.exception("plug-in could not be closed", plug_in=name)


def _load(name: str) -> Callable[..., object]:
    """Load `pkg.mod.Class` or `pkg.mod:Class`. Raises ImportError, AttributeError, TypeError and import-time errors."""
    module_name, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    found: object = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} is not a class")
    return found


@dataclass(eq=False, repr=False)
class PlugInAuthenticator:
    """Authenticates callers with a plug-in's `authenticate`, which may be sync or async."""

    name: str
    instance: object
    threads: LimitedThreads
    challenge_threads: LimitedThreads
    provisioning: Provisioning

    def __post_init__(self) -> None:
        self._issuer = model.plug_in_issuer(self.name)
        self._authenticate = getattr(self.instance, "authenticate")  # noqa: B009 the instance may be of any class
        self._challenge = getattr(self.instance, "authenticate_header", None)

    async def caller(self, request: model.AuthRequest) -> model.User | None:
        """Return the user that the plug-in identifies, created on the first call; None if it identifies none.

        Raises AuthenticationFailed, UserNotFound (no such user), UserInactive, DatabaseUnavailable. RuntimeError (the
        plug-in failed or timed out) and TypeError (invalid result) become internal errors of the call.
        """
        try:
            returned = await self.threads.call(self._authenticate, request)
        except errors.AuthenticationFailed:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise RuntimeError(f"{self.name}: {type(error).__name__}") from error
        if returned is None:
            return None
        # In a tuple, the first item is the user; the second is for the plug-in's own use and is ignored.
        pair = cast("tuple[object, ...]", returned) if isinstance(returned, tuple) else (returned, None)
        person = pair[0] if len(pair) == 2 else None
        if not isinstance(person, model.AuthenticatedUser) or not is_well_formed(person):
            raise TypeError(f"{self.name}: returned no valid AuthenticatedUser")
        try:
            return await self.provisioning.user(model.ExternalIdentity(self._issuer, person.username), person=person)
        except errors.IdentityRefused as refused:
            log.info("user of an authenticator rejected", authenticator=self.name, reason=refused.reason)
            raise

    async def challenge(self, request: model.AuthRequest) -> str | None:
        """Return the result of `authenticate_header`; None if that fails or is not a valid header value."""
        if not callable(self._challenge):
            return None
        try:
            text = await self.challenge_threads.call(self._challenge, request)
        except Exception as error:  # noqa: BLE001 a plug-in may raise anything; the 401 is sent without a challenge
            log.warning("challenge omitted", authenticator=self.name, error=type(error).__name__)
            return None
        if text is None or (isinstance(text, str) and text.isascii() and text.isprintable()):
            return text
        log.error("challenge is not a valid header value", authenticator=self.name)
        return None


class PlugInLogin:
    """Logs users in with a plug-in's `login`, which may be sync or async."""

    def __init__(self, name: str, instance: object, threads: LimitedThreads, usernames: model.UsernameRule) -> None:
        self._name = name
        self._usernames = usernames
        self._login = getattr(instance, "login")  # noqa: B009 the instance may be of any class
        self._threads = threads

    async def login(self, username: str, password: str, request: model.RequestInfo) -> model.AuthenticatedUser | None:
        """Return the user that the plug-in accepts; None if it accepts none or the name is not a valid user name.

        The plug-in receives the normalized name. Raises AuthenticationFailed; LoginBackendUnavailable if the plug-in
        raises any other exception or too many logins are waiting.
        """
        try:
            name = self._usernames.read(username).shown
        except errors.InvalidUsername:
            return None
        try:
            returned = await self._threads.call(self._login, name, password, request)
        except (errors.AuthenticationFailed, TooManyWaiting):
            raise
        except Exception as error:  # a plug-in may raise anything
            log.exception("login back end failed", backend=self._name)
            raise errors.LoginBackendUnavailable(f"{type(error).__name__} in {self._name}") from error
        if returned is None or (isinstance(returned, model.AuthenticatedUser) and is_well_formed(returned)):
            return returned
        log.error(
            "login back end returned no valid AuthenticatedUser", backend=self._name, returned=type(returned).__name__
        )
        raise errors.LoginBackendUnavailable(f"{self._name} returned no valid AuthenticatedUser")
