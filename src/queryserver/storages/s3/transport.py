"""HTTP as this service wants it below the driver: no redirects, large reads."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientResponse, ClientSession

from queryserver.storages.read_sizes import ReadSizes

_SLICE_BYTES = 512 * 1024


class DirectSession(AIOHTTPSession):
    """The driver's HTTP session. A redirect is an answer like any other: nobody is sent elsewhere (security T8)."""

    def __init__(self, read_sizes: ReadSizes, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._read_sizes = read_sizes

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _DirectClient(await super()._get_session(proxy_url), self._read_sizes)


class _DirectClient:
    """A session that was told once what to do with redirects."""

    def __init__(self, session: ClientSession, read_sizes: ReadSizes) -> None:
        self._session = session
        self._read_sizes = read_sizes

    async def request(
        self,
        method: str,
        *,
        url: Any,
        headers: Mapping[str, str],
        data: Any,
        chunked: bool | None,
        proxy: str | None,
        proxy_headers: Mapping[str, str] | None,
    ) -> ClientResponse:
        """As the driver calls it."""
        return await self._session.request(
            method,
            url,
            headers=headers,
            data=_in_slices(data) if isinstance(data, bytes | bytearray) and len(data) > _SLICE_BYTES else data,
            chunked=chunked,
            proxy=proxy,
            proxy_headers=proxy_headers,
            allow_redirects=False,
            # About twice as much is held; the 64 KiB of the library cost a third of the speed.
            read_bufsize=self._read_sizes.piece_bytes,
        )


async def _in_slices(content: bytes | bytearray) -> AsyncGenerator[memoryview]:
    """A large body, so that it is not copied as a whole and others have their turn. Headers tell its length."""
    whole = memoryview(content)
    for start in range(0, len(whole), _SLICE_BYTES):
        yield whole[start : start + _SLICE_BYTES]
