"""The database files of the private PostgreSQL, made once per state directory.

    <state_dir>/postgresql/     0700, ours
      lock                      held while a server runs here
      secrets.json              0600, ours
      log, log.old              what PostgreSQL says, bounded
      address.json              where the running PostgreSQL listens
      data/                     the cluster; as root owned by the unprivileged account

As root the unprivileged account cannot walk to `data`: the state directory is closed to others, and the parents of
somebody's home are as well. Nothing is opened for it. It need not walk: its programs are started *in* the directory,
and are told that the data lie in `/proc/self/cwd`, which the kernel follows without asking the parents.
"""

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from queryserver.domain.sample_database import SAMPLE_DATABASE, SAMPLE_OWNER, SAMPLE_ROLE
from queryserver.embedded.account import Account, server_account, spawn
from queryserver.embedded.binaries import NEWEST_MAJOR, Binaries, runnable_binaries
from queryserver.embedded.errors import EmbeddedPostgresError
from queryserver.embedded.files import sync, write_private
from queryserver.embedded.passwords import ClusterSecrets, kept_secrets

SUPERUSER = "embedded_admin"
SERVICE_ROLE = "queryserver"

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

# The service's database is reached over the socket only, the users' one over loopback only: a statement or a connector
# that points at the loopback port can never log in to the service's tables.
_ACCESS_RULES = f"""\
local all {SUPERUSER},{SERVICE_ROLE} scram-sha-256
host all {SUPERUSER},{SERVICE_ROLE} 127.0.0.1/32 reject
host {SAMPLE_DATABASE} {SAMPLE_ROLE},+{SAMPLE_OWNER} 127.0.0.1/32 scram-sha-256
"""

_HERE = Path("/proc/self/cwd")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A complete cluster, ready to be started."""

    home: Path
    account: Account | None
    binaries: Binaries
    secrets: ClusterSecrets

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.home / "data"

    @property
    def name(self) -> str:
        """Tells the processes of this cluster from all others, also from those of a copy of the directory."""
        place = self.data.stat()
        identity = f"{self.secrets.cluster_id}:{place.st_dev}:{place.st_ino}"
        return f"queryserver_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def opened_cluster(home: Path, *, durable: bool) -> Cluster:
    """The cluster of the state directory, made if there is none. The caller holds the lock.

    A cluster is made under another name: what a killed first start left is thrown away.
    """
    data, account = home / "data", server_account()
    secrets = kept_secrets(home / "secrets.json", may_create=not data.exists())
    binaries = runnable_binaries(_major(data), account)
    _throw_away_half_made(home)
    if data.exists():
        _write_access_rules(data, account)
    else:
        _make(data, account, binaries, secrets, durable=durable)
        # The killed start's own initdb may have been at work still, and have written to what was being thrown away.
        _throw_away_half_made(home)
    return Cluster(home, account, binaries, secrets)


def data_argument(data: Path, account: Account | None) -> str:
    """How a program that is started in the directory `data` under `account` is told about it."""
    return str(_HERE) if account and _HERE.exists() else str(data)


def _throw_away_half_made(home: Path) -> None:
    for leftover in home.glob("new-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _major(data: Path) -> int:
    """Files are tied to the major version that made them."""
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        return NEWEST_MAJOR


def _make(data: Path, account: Account | None, binaries: Binaries, secrets: ClusterSecrets, *, durable: bool) -> None:
    new = Path(tempfile.mkdtemp(prefix="new-", dir=data.parent))
    if account:
        account.own(new)
    _initialise(new, account, binaries, secrets, durable=durable)
    _write_access_rules(new, account)
    new.rename(data)
    sync(data.parent)


def _write_access_rules(data: Path, account: Account | None) -> None:
    """Also for a cluster of an earlier version, whose rules were others."""
    rules, new = data / "pg_hba.conf", data / "pg_hba.conf.new"
    new.unlink(missing_ok=True)
    write_private(new, _ACCESS_RULES, account=account)
    new.replace(rules)


def _initialise(
    new: Path, account: Account | None, binaries: Binaries, secrets: ClusterSecrets, *, durable: bool
) -> None:
    arguments = ["-U", SUPERUSER, "-A", "scram-sha-256", "--pwfile=/dev/stdin", "-E", "UTF8", "--locale=C"]
    arguments += ["--no-instructions"] if durable else ["--no-instructions", "--no-sync"]
    with tempfile.TemporaryFile() as password, tempfile.TemporaryFile() as output:
        password.write(f"{secrets.superuser}\n".encode())
        password.seek(0)
        if account:  # /dev/stdin is opened anew, by the account
            os.fchown(password.fileno(), account.uid, account.gid)
        process = spawn(
            [binaries.initdb, "-D", data_argument(new, account), *arguments],
            account=account,
            cwd=new,
            environment=ENVIRONMENT,
            stdin=password,
            output=output,
        )
        try:
            ended_with = process.wait(timeout=120)
        finally:
            process.kill()
        if ended_with != 0:
            output.seek(0)
            message = f"The embedded database could not be made:\n{output.read().decode(errors='replace')[-2000:]}"
            raise EmbeddedPostgresError(message)
