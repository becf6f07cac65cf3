"""The contract of the TLS settings in connector URLs for every SQL server: the connections they accept and refuse."""

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
    """The TLS tests. A test class that inherits them provides the attributes below and four fixtures.

    `server` has a certificate from `authority` for `localhost` but not for 127.0.0.1, and accepts the user `private`
    only over TLS; `plain_server` does not support TLS. `verifying` lists the modes that verify the certificate
    authority, and `requiring` lists the modes that require TLS.
    """

    engine_name: ClassVar[str]
    without_tls: ClassVar[str]
    strictest: ClassVar[str]
    """`without_tls` is the mode that never uses TLS; `strictest` is the mode that also verifies the host name."""
    slow_sql: ClassVar[str]
    password: ClassVar[str]
    """The password of the user `private`."""
    refused_without_tls: ClassVar[str]
    refused_password: ClassVar[str]
    """The server's error message for a wrong password."""

    @abstractmethod
    def url(self, server: ServerAddress, mode: str, host: str = "localhost", password: str = "") -> str:
        """Return a connector URL for the user `private`; an empty `password` stands for the correct one."""

    @pytest.fixture(scope="class")
    @classmethod
    def authority(cls) -> Authority:
        return Authority()

    @pytest.fixture
    def trusted(self, authority: Authority, trust: Callable[[str], None]) -> None:
        """Make the system trust the authority, because connector URLs cannot name certificate files."""
        trust(authority.certificate)

    @pytest.mark.usefixtures("trusted")
    async def test_statement_is_canceled_over_tls(self, server: ServerAddress) -> None:
        async with (
            built("sqlalchemy", url=self.url(server, self.strictest)) as engine,
            engine.session(USER, NO_OPTIONS) as session,
        ):
            handle = await session.submit(self.slow_sql)
            await started(session, handle)
            await session.cancel(handle)
            assert (await ended(session, handle, within_s=5)).state is OperationState.CANCELED

    async def test_certificate_of_unknown_authority_is_refused(self, server: ServerAddress, verifying: str) -> None:
        async with built("sqlalchemy", url=self.url(server, verifying)) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert error.message.startswith(self._not_connected("certificate verification failed ("))
            assert "issuer certificate" in error.message
            assert_tells_nothing(error, self.password)
            with pytest.raises(EngineUnavailable, match="certificate verification failed"):
                await engine.ping()

    @pytest.mark.usefixtures("trusted")
    async def test_certificate_for_another_host_is_refused(self, server: ServerAddress) -> None:
        async with built("sqlalchemy", url=self.url(server, self.strictest, "127.0.0.1")) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert "certificate verification failed (IP address mismatch" in error.message
            assert_tells_nothing(error, self.password)

    async def test_login_without_required_tls_is_refused(self, server: ServerAddress) -> None:
        async with built("sqlalchemy", url=self.url(server, self.without_tls)) as engine:
            error = await refusal(engine)
            assert isinstance(error, CredentialsRequired)
            assert error.message == self.refused_without_tls

    @pytest.mark.usefixtures("trusted")
    async def test_wrong_password_over_tls_is_a_refused_login(self, server: ServerAddress) -> None:
        async with built("sqlalchemy", url=self.url(server, self.strictest, password="wrong")) as engine:
            error = await refusal(engine)
            assert isinstance(error, CredentialsRequired)
            assert error.message == self.refused_password

    async def test_no_login_is_sent_to_plain_server_if_tls_is_required(
        self, plain_server: ServerAddress, requiring: str
    ) -> None:
        async with built("sqlalchemy", url=self.url(plain_server, requiring)) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert error.message == self._not_connected("the server does not support TLS.")

    def _not_connected(self, reason: str) -> str:
        return f"Could not connect to {self.engine_name}: {reason}"
