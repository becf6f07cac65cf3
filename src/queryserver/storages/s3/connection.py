"""The connection to an S3 store: one driver client, and calls with a time limit whose errors are ours."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import MappingProxyType
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.files import StorageError, StorageUnavailable
from queryserver.storages.read_sizes import ReadSizes
from queryserver.storages.s3.errors import Meanings, s3_errors
from queryserver.storages.s3.options import S3Options
from queryserver.storages.s3.transport import DirectSession

_CONNECT_TIMEOUT_S = 5.0
# Slower than this a store is taken for dead.
_SLOWEST_BYTES_PER_S = 256 * 1024
# Silence of the store in the middle of a call that may take long, such as the joining of parts.
_SILENCE_S = 300.0
_READ_BYTES = 512 * 1024
_TRIES = 3
_FIRST_PAUSE_S = 0.2

_NO_MEANINGS: Meanings = MappingProxyType({})


class S3Connection:
    """A client of the driver, made by the first call. To be closed by its owner.

    It sends a call once; `ask` repeats those that do no harm twice. Nothing but the configured store is talked to:
    redirects are not followed, and no bucket's region is looked for.
    """

    def __init__(self, options: S3Options) -> None:
        self.options = options
        self.read_sizes = ReadSizes(most_bytes=_READ_BYTES)
        self._opening = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._client: Any = None
        self._closed = False
        self._without_conditions = set[str]()

    def time_for(self, size_bytes: int) -> float:
        """Seconds after which a call that moves so many bytes has failed."""
        return self.options.timeout_s + size_bytes / _SLOWEST_BYTES_PER_S

    async def ask(
        self,
        operation: str,
        arguments: Mapping[str, object],
        *,
        about: str,
        means: Meanings = _NO_MEANINGS,
        timeout_s: float | None = None,
        repeatable: bool = True,
    ) -> Mapping[str, Any]:
        """One call of the API and its answer. `operation` and `arguments` are called as the driver calls them.

        `about` is the path for messages. A `repeatable` call is tried thrice when the store does not answer or is
        overloaded, all within `timeout_s`, by default that of the options. Raises what `errors.py` makes of refusals.
        """
        with s3_errors(about, means):
            async with asyncio.timeout(timeout_s or self.options.timeout_s):
                client = await self._opened()
                for attempt in range(1, _TRIES if repeatable else 1):
                    try:
                        with s3_errors(about, means):
                            return await getattr(client, operation)(**arguments)
                    except StorageUnavailable:
                        await asyncio.sleep(_pause_s(attempt))
                return await getattr(client, operation)(**arguments)

    async def ask_if_absent(
        self,
        operation: str,
        arguments: Mapping[str, object],
        *,
        about: str,
        means: Meanings = _NO_MEANINGS,
        timeout_s: float | None = None,
    ) -> Mapping[str, Any]:
        """As `ask`, on the condition that there is no object of that key; sent once.

        A store that does not know the condition gets the call without it: callers look before.
        """
        if operation not in self._without_conditions:
            try:
                return await self.ask(
                    operation,
                    {**arguments, "IfNoneMatch": "*"},
                    about=about,
                    means=means,
                    timeout_s=timeout_s,
                    repeatable=False,
                )
            except NotSupported:
                self._without_conditions.add(operation)
        return await self.ask(operation, arguments, about=about, means=means, timeout_s=timeout_s, repeatable=False)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        self._closed = True
        async with self._opening:
            self._client = None
            await self._resources.aclose()

    async def _opened(self) -> Any:
        """The client. Its making reads the driver's description of the API, for which threads are used."""
        async with self._opening:
            if self._closed:
                raise StorageError("The store is closed.")
            if self._client is None:
                self._client = await self._resources.enter_async_context(self._new_client())
                self._client.meta.events.register("before-call.s3", _stay_here)
        return self._client

    def _new_client(self) -> Any:
        keys = self.options.keys
        return get_session().create_client(
            "s3",
            region_name=self.options.region or None,
            endpoint_url=self.options.endpoint_url,
            use_ssl=self.options.is_secure,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=(keys.session_token or None) if keys else None,
            config=_configuration(self.options, self.read_sizes),
        )


def _configuration(options: S3Options, read_sizes: ReadSizes) -> AioConfig:
    return AioConfig(
        signature_version="s3v4",
        # Payloads are signed, so that a store notices every changed byte; checksums beside that cost time only.
        s3={"addressing_style": "path" if options.path_style else "auto", "payload_signing_enabled": True},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1},
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_SILENCE_S,
        max_pool_connections=options.max_connections,
        # With keys of the settings the environment has no say, not even about the address.
        ignore_configured_endpoint_urls=options.keys is not None,
        http_session_cls=partial(DirectSession, read_sizes),
        warm_up_loader_caches=True,
    )


def _stay_here(params: Mapping[str, Any], **_further: object) -> None:
    """Tell the driver that it has been redirected already, lest it looks for the region of a bucket."""
    params["context"].get("s3_redirect", {})["redirected"] = True


def _pause_s(attempt: int) -> float:
    return _FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0)  # noqa: S311 no secret
