"""Connections that are only opened, to see whether somebody listens."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from queryserver.network.addresses import AddressRules


@dataclass(frozen=True, slots=True)
class TcpReach:
    """See `interfaces.connection_trials.Reach`."""

    rules: AddressRules

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """See the Protocol. Raises UnknownHost, HostRefused."""
        return await self.rules.resolve(host, port)

    async def connect(self, address: str, port: int) -> None:
        """See the Protocol. Whoever asks limits the time."""
        _, writer = await asyncio.open_connection(address, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
