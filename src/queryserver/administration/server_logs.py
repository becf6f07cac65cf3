"""The most recent log of this server, for administrators (Contract platform 7.6)."""

import asyncio
import io
import socket
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from queryserver.errors.base import NotFound
from queryserver.platform.logs import KEPT_BYTES, tail_of

_SHOWN_BYTES = 32 * 1024


class ServerLogs:
    """The end of the log file, or the recent lines of this process. Secrets were redacted when they were written."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.host_name = socket.gethostname()

    async def lines(self, *, newest_first: bool) -> Sequence[str]:
        """Complete lines, with line ends, from the last 32 KiB. Raises NotFound if the file is missing."""
        content = await asyncio.to_thread(self._tail, _SHOWN_BYTES)
        lines = content.decode(errors="replace").split("\n")[:-1]
        return [f"{line}\n" for line in (reversed(lines) if newest_first else lines)]

    async def archive(self) -> tuple[str, bytes]:
        """Name and content of a ZIP file with the last MiB. Raises NotFound if the file is missing."""
        moment, target = datetime.now(UTC), io.BytesIO()

        def pack() -> None:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                member = zipfile.ZipInfo("queryserver.log", moment.timetuple()[:6])
                archive.writestr(member, self._tail(KEPT_BYTES), zipfile.ZIP_DEFLATED)

        await asyncio.to_thread(pack)
        return f"queryserver-logs-{moment:%Y%m%dT%H%M%S}.zip", target.getvalue()

    def _tail(self, max_bytes: int) -> bytes:
        try:
            return tail_of(self._file, max_bytes)
        except OSError:
            raise NotFound("The log file is not there.") from None
