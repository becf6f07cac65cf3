"""Servers with a REST API under test: HDFS by WebHDFS, Apache Atlas (Contract platform 5.8)."""

import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlencode

import orjson

from queryserver.domain.errors.statements import CredentialsRequired, StatementRejected
from queryserver.domain.user import User
from queryserver.network.addresses import AddressRules
from queryserver.network.exchanges import Answered, Asked, Exchanges

_REFUSED = frozenset({401, 403})
_MAX_BYTES = 256 * 1024
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class RestQuestion:
    """A GET that only a server of the type answers with an object that has `member`, a text."""

    url: str
    member: str
    tells_version: bool = False
    as_user: bool = False
    """Names the caller the way WebHDFS wants it; the url has a query then."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


class RestAttempt:
    """See `interfaces.connection_trials.Attempt`."""

    def __init__(self, rules: AddressRules, question: "RestQuestion") -> None:
        self._exchanges = Exchanges(rules)
        self._question = question

    @asynccontextmanager
    async def login(self, user: User) -> AsyncGenerator["RestLogin"]:
        """See the Protocol. The one exchange that there is proves the login, too."""
        question, url = self._question, self._question.url
        if question.as_user:
            url = f"{url}&{urlencode({'user.name': user.username})}"
        answer = await self._exchanges.send(Asked(url, headers=question.headers, max_bytes=_MAX_BYTES))
        if answer.status in _REFUSED:
            raise CredentialsRequired("The server refused the login.")
        yield RestLogin(answer, question)

    async def close(self) -> None:
        """See the Protocol."""
        await self._exchanges.__aexit__()


class RestLogin:
    """See `interfaces.connection_trials.LoggedIn`."""

    def __init__(self, answer: Answered, question: "RestQuestion") -> None:
        self._answer = answer
        self._question = question

    async def try_it(self) -> str | None:
        """See the Protocol. Raises StatementRejected: the answer is not what such a server says."""
        if self._answer.status != 200:
            raise StatementRejected(f"The server answered with HTTP {self._answer.status}.")
        try:
            told = orjson.loads(self._answer.body)
        except orjson.JSONDecodeError:
            told = None
        value = told.get(self._question.member) if isinstance(told, dict) else None
        if not isinstance(value, str):
            raise StatementRejected("The server answered, but not as one of this type.")
        return value[:_SHOWN] if self._question.tells_version else None


def basic(username: str, password: str) -> Mapping[str, str]:
    """The header of a login; none without a user."""
    if not username:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}
