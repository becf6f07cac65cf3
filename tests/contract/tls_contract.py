"""What the TLS settings of a connector's url accept and refuse, at every server of SQL."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import pytest
from tests.contract.built_engines import assert_tells_nothing, built, refusal
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, started
from tests.engines.certificates import Authority
from tests.engines.servers import ServerAddress

from queryserver.engines.protocol import OperationState
from queryserver.errors.statements import CredentialsRequired, EngineUnavailable


class TlsContract(ABC):
    """Inherited by a class that gives the names below and four fixtures.

    `server` has a certificate of `authority` for `localhost`, not for 127.0.0.1, and lets the user `private` in by TLS
    only; `plain_server` has none. `verifying` are the modes that check the authority, `requiring` those that never go
    without TLS.
    """

    engine_name: ClassVar[str]
    without_tls: ClassVar[str]
    strictest: ClassVar[str]
    """The modes that never asks for TLS, and that checks the name too."""
    slow_sql: ClassVar[str]
    password: ClassVar[str]
    """Of `private`."""
    refused_without_tls: ClassVar[str]
    refused_password: ClassVar[str]
    """The server's own words."""

    @abstractmethod
    def url(self, server: ServerAddress, mode: str, host: str = "localhost", password: str = "") -> str:
        """A connector's url for `private`, with its own password unless another is given."""

    @pytest.fixture(scope="class")
    @classmethod
    def authority(cls) -> Authority:
        return Authority()

    @pytest.fixture
    def trusted(self, authority: Authority, trust: Callable[[str], None]) -> None:
        """The authority is one of the system's: urls name no files."""
        trust(authority.certificate)

    @pytest.mark.usefixtures("trusted")
    async def test_a_statement_is_canceled_over_tls(self, server: ServerAddress) -> None:
        async with (
            built("sqlalchemy", url=self.url(server, self.strictest)) as engine,
            engine.session(USER, NO_OPTIONS) as session,
        ):
            handle = await session.submit(self.slow_sql)
            await started(session, handle)
            await session.cancel(handle)
            assert (await ended(session, handle, within_s=5)).state is OperationState.CANCELED

    async def test_a_certificate_of_an_unknown_authority_is_refused(
        self, server: ServerAddress, verifying: str
    ) -> None:
        async with built("sqlalchemy", url=self.url(server, verifying)) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert error.message.startswith(self._not_connected("its certificate was not accepted ("))
            assert "issuer certificate" in error.message
            assert_tells_nothing(error, self.password)
            with pytest.raises(EngineUnavailable, match="its certificate was not accepted"):
                await engine.ping()

    @pytest.mark.usefixtures("trusted")
    async def test_a_certificate_of_another_name_is_refused(self, server: ServerAddress) -> None:
        async with built("sqlalchemy", url=self.url(server, self.strictest, "127.0.0.1")) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert "its certificate was not accepted (IP address mismatch" in error.message
            assert_tells_nothing(error, self.password)

    async def test_a_login_without_the_tls_that_the_server_wants_is_refused(self, server: ServerAddress) -> None:
        async with built("sqlalchemy", url=self.url(server, self.without_tls)) as engine:
            error = await refusal(engine)
            assert isinstance(error, CredentialsRequired)
            assert error.message == self.refused_without_tls

    @pytest.mark.usefixtures("trusted")
    async def test_a_wrong_password_over_tls_is_a_refused_login(self, server: ServerAddress) -> None:
        async with built("sqlalchemy", url=self.url(server, self.strictest, password="wrong")) as engine:
            error = await refusal(engine)
            assert isinstance(error, CredentialsRequired)
            assert error.message == self.refused_password

    async def test_no_login_is_sent_to_a_server_without_tls_that_must_have_it(
        self, plain_server: ServerAddress, requiring: str
    ) -> None:
        async with built("sqlalchemy", url=self.url(plain_server, requiring)) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert error.message == self._not_connected("it offers no TLS.")

    def _not_connected(self, reason: str) -> str:
        return f"No connection to {self.engine_name} could be made: {reason}"
