"""How `qs login --device` waits for the approval (Contract platform 3.13, RFC 8628 3.5)."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from queryserver_client.cli.device_login import approved_tokens
from queryserver_client.cli.login import NotLoggedIn
from queryserver_client.credentials import Secret
from queryserver_client.errors import ApiError, AuthenticationError, ConnectionLost

BEGUN = {
    "status": 0,
    "device": "sealed",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://login.example.com/device",
    "verification_uri_complete": None,
    "expires_in": 60,
    "interval": 5,
}
DONE = {"status": 0, "state": "done", "access": "a", "refresh": "r", "expires_in": 300}


def state(name: str) -> dict[str, Any]:
    return {"status": 0, "state": name}


class Server:
    """Answers a device login. `answers` are those of the polls; without further ones, the login stays pending."""

    def __init__(self, *answers: "Mapping[str, Any] | Exception", **begun: Any) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._begun = {**BEGUN, **begun}
        self._answers = list(answers)

    def post(self, path: str, fields: Mapping[str, "str | Secret"]) -> Mapping[str, Any]:
        if path == "token/device/begin":
            return self._begun
        assert (path, fields) == ("token/device/poll", {"device": Secret("sealed")})
        answer = self._answers.pop(0) if self._answers else state("pending")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def log_in(self) -> Mapping[str, Any]:
        return approved_tokens(self.post, sleep=self.sleep, clock=lambda: self.now)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().err


def test_address_and_code_are_shown_before_the_wait(printed: Callable[[], str]) -> None:
    assert Server(state("pending"), DONE).log_in() == DONE
    lines = printed().splitlines()
    assert lines[:2] == ["Open https://login.example.com/device", "and enter the code WDJB-MJHT"]
    assert lines[-1] == "Waiting for your approval, at most 60 seconds …"


def test_complete_address_is_shown_too_and_control_characters_are_masked(printed: Callable[[], str]) -> None:
    Server(DONE, user_code="A\x1b[2J", verification_uri_complete="https://login.example.com/device?c=A").log_in()
    shown = printed()
    assert "or open https://login.example.com/device?c=A" in shown
    assert "\x1b" not in shown


def test_interval_grows_by_five_seconds_with_each_slow_down() -> None:
    server = Server(state("pending"), state("slow_down"), state("pending"), state("slow_down"), DONE)
    server.log_in()
    assert server.pauses == [5, 5, 10, 10, 15]


def test_wait_ends_when_the_code_has_expired() -> None:
    server = Server()
    with pytest.raises(NotLoggedIn, match="not approved within 60 seconds"):
        server.log_in()
    assert server.now == 60
    expired = ApiError("The login was not approved in time.", status=400, code="device_code_expired")
    with pytest.raises(NotLoggedIn, match="not approved in time"):
        Server(expired).log_in()


def test_denied_login_is_reported_with_its_reason() -> None:
    denied = AuthenticationError("The login was denied at the issuer.", status=401, code="issuer_login_refused")
    with pytest.raises(NotLoggedIn, match=r"^The login was denied at the issuer\.$"):
        Server(denied).log_in()


def test_wait_goes_on_while_the_server_is_unreachable(printed: Callable[[], str]) -> None:
    assert Server(ConnectionLost("no answer from login.example.com"), DONE).log_in() == DONE
    assert "qs: no answer from login.example.com; still waiting" in printed()


def test_other_failures_end_the_wait() -> None:
    with pytest.raises(ApiError, match="Broken"):
        Server(ApiError("Broken.", status=400, code="invalid_parameter")).log_in()
