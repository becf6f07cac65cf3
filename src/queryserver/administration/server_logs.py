"""Returns the most recent log lines of this server to administrators (Contract platform 7.6)."""

import asyncio
import io
import socket
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from queryserver.errors.base import NotFound
from queryserver.platform.logs import RECENT_BYTES, log_tail

_SHOWN_BYTES = 32 * 1024


class ServerLogs:
    """Reads the end of the log file, or this process's recent log lines. Secrets were redacted before writing."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.host_name = socket.gethostname()

    async def lines(self, *, newest_first: bool) -> Sequence[str]:
        """Return the complete lines in the last 32 KiB, with line endings. Raises NotFound if the file is missing."""
        content = await asyncio.to_thread(self._tail, _SHOWN_BYTES)
        lines = content.decode(errors="replace").split("\n")[:-1]
        return [f"{line}\n" for line in (reversed(lines) if newest_first else lines)]

    async def archive(self) -> tuple[str, bytes]:
        """Return the name and content of a ZIP file with the last MiB of the log.

        Raises NotFound if the log file is missing.
        """
        moment, target = datetime.now(UTC), io.BytesIO()

        def pack() -> None:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                member = zipfile.ZipInfo("queryserver.log", moment.timetuple()[:6])
                archive.writestr(member, self._tail(RECENT_BYTES), zipfile.ZIP_DEFLATED)

        await asyncio.to_thread(pack)
        return f"queryserver-logs-{moment:%Y%m%dT%H%M%S}.zip", target.getvalue()

    def _tail(self, max_bytes: int) -> bytes:
        try:
            return log_tail(self._file, max_bytes)
        except OSError:
            raise NotFound("The log file does not exist.") from None
