"""`qs login --device`: the user approves the login in a browser at the server's issuer (Contract platform 3.13)."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from queryserver_client.cli.failures import visible
from queryserver_client.cli.login import NotLoggedIn
from queryserver_client.credentials import Secret
from queryserver_client.errors import ApiError, AuthenticationError, ConnectionLost, ServerUnavailable

Poster = Callable[[str, Mapping[str, "str | Secret"]], Mapping[str, Any]]
"""Makes a `token/` call without credentials, and returns the JSON object in the response."""

_SLOW_DOWN_S = 5
"""RFC 8628, 3.5."""


def approved_tokens(
    post: Poster, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> Mapping[str, Any]:
    """Print address and code, wait until the user has approved the login, and return the response with the tokens.

    Raises NotLoggedIn if the user denies, or does not approve in time. The wait goes on while the server or the issuer
    is unreachable.
    """
    begun = post("token/device/begin", {})
    device, interval_s = Secret(begun["device"]), float(begun["interval"])
    until = clock() + float(begun["expires_in"])
    _show(begun)
    while clock() + interval_s <= until:
        sleep(interval_s)
        answer = _polled(post, device)
        if answer["state"] == "done":
            return answer
        if answer["state"] == "slow_down":
            interval_s += _SLOW_DOWN_S
    raise NotLoggedIn(f"the login was not approved within {_duration(float(begun['expires_in']))}")


def _polled(post: Poster, device: Secret) -> Mapping[str, Any]:
    try:
        return post("token/device/poll", {"device": device})
    except (ConnectionLost, ServerUnavailable) as error:
        print(f"qs: {visible(str(error))}; still waiting", file=sys.stderr)
        return {"state": "pending"}
    except AuthenticationError as error:
        raise NotLoggedIn(visible(error.message)) from error
    except ApiError as error:
        if error.code != "device_code_expired":
            raise
        raise NotLoggedIn(visible(error.message)) from error


def _show(begun: Mapping[str, Any]) -> None:
    """Print what the user has to do. The texts come from the issuer, so control characters are masked."""
    address, code = visible(str(begun["verification_uri"])), visible(str(begun["user_code"]))
    lines = [f"Open {address}", f"and enter the code {code}"]
    if complete := begun.get("verification_uri_complete"):
        lines.append(f"or open {visible(str(complete))}")
    lines.append(f"Waiting for your approval, at most {_duration(float(begun['expires_in']))} …")
    print("\n".join(lines), file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes"
