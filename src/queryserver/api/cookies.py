"""The cookies of logins from web pages, each bound to the path of the calls that read it (Contract platform 3.11, Rule
T18).
"""

from dataclasses import dataclass

from fastapi import Request, Response

from queryserver.api.origins import is_secure
from queryserver.platform.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Cookie:
    """A cookie: the beginning of its name, and the path, below the prefix, of the calls to which browsers send it."""

    name: str
    path: str

    def name_for(self, http: Request) -> str:
        """The name, followed by the port of `Host` if it has one.

        Browsers send a cookie to all ports of a host: without the port, two servers on one host would replace and
        delete each other's sessions.
        """
        port = http.headers.get("host", "").rpartition(":")[2]
        return f"{self.name}_{port}" if port.isascii() and port.isdecimal() else self.name


SESSION_COOKIE = Cookie("queryserver_session", "/api/v1/token/session")
"""Contains the refresh token of a session."""
LOGIN_COOKIE = Cookie("queryserver_login", "/api/v1/token/oidc")
"""Contains the sealed state of a login at the external issuer."""


def set_cookie(
    response: Response, http: Request, settings: Settings, cookie: Cookie, value: str, *, max_age_s: int
) -> None:
    """Set the cookie in the browser; with `max_age_s=0`, delete it."""
    response.set_cookie(
        cookie.name_for(http),
        value,
        max_age=max_age_s,
        path=f"{settings.desktop.url_prefix.rstrip('/')}{cookie.path}",
        secure=is_secure(http, settings),
        httponly=True,
        samesite="strict",
    )


def cookie_value(http: Request, cookie: Cookie) -> str | None:
    """Return the value of the cookie that the browser sent, or None.

    Two different cookies of this name count as none: a site of the same domain may have set one of them, to log the
    user in under another name.
    """
    pairs = (pair.strip().partition("=") for header in http.headers.getlist("cookie") for pair in header.split(";"))
    expected = cookie.name_for(http)
    values = {value for name, _, value in pairs if name == expected}
    return values.pop() or None if len(values) == 1 else None
