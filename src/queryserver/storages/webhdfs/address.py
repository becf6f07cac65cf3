"""Where a WebHDFS is, and what it is told on every call."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from queryserver.domain.errors.files import StorageError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Each wait of a stream has `silence_s`, a call without a stream `call_s` with all its tries."""

    connect_s: float = 5.0
    silence_s: float = 30.0
    call_s: float = 30.0


@dataclass(frozen=True, slots=True)
class WebHdfsAddress:
    """One cluster, or one gateway."""

    urls: Sequence[str]
    """One for each name node, each ending in `/webhdfs/v1`; tried in turn."""
    service_user: str
    """The login of this service, which acts for its callers."""
    tls: ssl.SSLContext | bool = True
    """How certificates are checked; False: not at all."""
    uses_tokens: bool = False
    """Whether callers are named by delegation tokens, which the service gets with its Kerberos ticket."""
    redirect_hosts: Sequence[str] = ()
    """Hosts besides those of `urls` to which reads and writes may be sent on; `*.domain` for all of a domain."""
    umask: int = 0o022
    timeouts: Timeouts = Timeouts()


class RedirectRule:
    """Which hosts may be asked for the data of a call (Contract storage 12, S12)."""

    def __init__(self, hosts: Sequence[str]) -> None:
        names = [host.strip().lower() for host in hosts]
        self._hosts = frozenset(name for name in names if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))

    def check(self, scheme: str, host: str, *, sent_by: str) -> None:
        """Raises StorageError. `sent_by` is the scheme of the call: from https nothing goes on by http."""
        name = host.lower()
        is_known = name in self._hosts or (bool(self._suffixes) and name.endswith(self._suffixes))
        if not is_known or scheme not in {sent_by, "https"}:
            raise StorageError(
                "The store sends its data by a host that is not among the redirect_hosts of its settings."
            )
