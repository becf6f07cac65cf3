"""The requests of the client protocol, on behalf of one session."""

import asyncio
import re
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import httpx

from queryserver.domain.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown
from queryserver.engines.trino.address import Login, TrinoAddress, Variant
from queryserver.engines.trino.client_state import ClientState, request_headers
from queryserver.engines.trino.errors import (
    Expired,
    Refused,
    Transient,
    TrinoRejected,
    check_status,
    engine_error,
    given_up,
)
from queryserver.engines.trino.http import Answer, HttpClient, insist
from queryserver.engines.trino.pages import Page, parse

PAGE_BYTES = 1024 * 1024
"""What a page should weigh: larger ones save no time, and reading them as JSON would hold the event loop up."""

_STATEMENT = "/v1/statement"
_NO_QUERY = "/v1/query/20000101_000000_00000_aaaaa"
_STATEMENT_URI = re.compile(r"/v1/statement/[A-Za-z0-9_./\-]+(\?[A-Za-z0-9_.=&%\-]*)?")
_SMALL_BYTES = 64 * 1024
_GARBAGE_TRIES = 3


class Coordinator:
    """One session's way to the coordinator. `executor` reads large answers."""

    def __init__(
        self, http: HttpClient, address: TrinoAddress, variant: Variant, login: Login, state: ClientState,
        executor: Executor,
    ) -> None:  # fmt: skip
        self.state = state
        self.executor = executor
        self.address = address
        self.http = http
        self._variant = variant
        self._login = login
        self._origin = httpx.URL(address.url).copy_with(path="/", query=None, fragment=None, username="", password="")

    async def check(self) -> None:
        """A look at nothing, with the login of the session. Raises EngineUnavailable, CredentialsRequired."""
        try:
            await insist(
                partial(self._accepted, "GET", _NO_QUERY), for_s=self.address.patience.stop_s, only_if=_was_reached
            )
        except Transient as error:
            raise EngineUnavailable(error.message) from error
        except Expired:
            return  # as expected, there is no such query
        except TrinoRejected as error:
            if error.name == "HTTP_403":
                raise

    async def start(self, statement: str) -> Page:
        """The first page. Only an answer that tells so is tried again: what was sent once is not sent again.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected, OutcomeUnknown.
        """
        try:
            answer = await insist(
                partial(self._accepted, "POST", _STATEMENT, statement.encode()),
                for_s=self.address.patience.retry_s,
                only_if=lambda error: isinstance(error, Refused),
            )
            return await self._page(answer, "")
        except Transient as error:
            raise given_up(error, sent=error.reached and not isinstance(error, Refused)) from error

    async def page(self, uri: str) -> Page:
        """The page of that path, which may be asked for again. Raises OutcomeUnknown, StatementRejected."""
        garbage = 0

        async def attempt() -> Page:
            nonlocal garbage
            answer = await self._asked(uri)
            try:
                return await self._page(answer, uri)
            except Transient as error:
                garbage += 1
                if garbage >= _GARBAGE_TRIES:
                    raise OutcomeUnknown(error.message) from error
                raise

        try:
            return await insist(attempt, for_s=self.address.patience.retry_s)
        except Transient as error:
            raise given_up(error, sent=True) from error

    async def _asked(self, uri: str) -> Answer:
        mark = "&" if "?" in uri else "?"
        try:
            return await self._accepted("GET", f"{uri}{mark}targetResultSize={PAGE_BYTES}B")
        except TrinoRejected as error:
            if error.name == "HTTP_500":  # so Trino answers when the page after this one has been asked for already
                raise Expired from error
            raise

    async def stop(self, uri: str) -> bool:
        """Stop the statement; True once the coordinator has taken the word. Limited in time."""
        try:
            async with asyncio.timeout(self.address.patience.stop_s):
                await insist(partial(self._accepted, "DELETE", uri), for_s=self.address.patience.stop_s)
        except Expired:
            return True
        except (EngineError, Transient, TimeoutError):
            return False
        return True

    async def finish(self, statement: str) -> None:
        """Run a statement to its end and leave its rows. Raises what `start` and `page` raise, and its failure."""
        page = await self.start(statement)
        while page.next_uri is not None and page.error is None:
            page = await self.page(page.next_uri)
        if page.error is not None:
            raise engine_error(page.error)

    def url(self, path: str) -> httpx.URL:
        """The configured coordinator with another path and query."""
        return self._origin.copy_with(raw_path=f"{self.address.path}{path}".encode())

    async def _accepted(self, method: str, path: str, content: bytes = b"") -> Answer:
        headers = request_headers(self.address, self._variant, self._login, self.state)
        answer = await self.http.send(method, self.url(path), headers, content)
        check_status(answer.status, answer.body)
        self.state.absorb(answer.headers, self._variant)
        return answer

    async def _page(self, answer: Answer, uri: str) -> Page:
        if len(answer.body) < _SMALL_BYTES:
            page = parse(answer.body, uri)
        else:
            loop = asyncio.get_running_loop()
            page = await loop.run_in_executor(self.executor, parse, answer.body, uri)
        if page.next_uri is None:
            return page
        return replace(page, next_uri=self.own_uri(page.next_uri))

    def own_uri(self, next_uri: str) -> str:
        """The path of a next URI, to be asked of the configured coordinator and nobody else.

        A coordinator behind a proxy may name itself by an address that only it knows; and a forged answer must not
        make us send the login to another host.
        """
        parts = urlsplit(next_uri)
        uri = parts.path + (f"?{parts.query}" if parts.query else "")
        own = uri[max(uri.find(_STATEMENT), 0) :]
        if not _STATEMENT_URI.fullmatch(own) or ".." in own:
            raise Transient("Trino's answer cannot be read.")
        return own


def _was_reached(error: Transient) -> bool:
    return error.reached
