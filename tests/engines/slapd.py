"""OpenLDAP's slapd from the system's packages: a directory with people and groups (Debian: slapd)."""

import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.engines.certificates import Authority
from tests.engines.servers import data_directory, listens, require, serving
from tests.ports import free_port

_PROGRAMS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/libexec"
BASE = "dc=example,dc=test"
SERVICE = f"cn=service,{BASE}"
PASSWORD = "secret of the service"

_AS_ME = {"start_new_session": True}
_SETTINGS = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {directory}/slapd.pid
TLSCACertificateFile {directory}/authority.pem
TLSCertificateFile {directory}/certificate.pem
TLSCertificateKeyFile {directory}/key.pem
security simple_bind=128
disallow bind_anon
database mdb
suffix "{base}"
directory {directory}/data
maxsize 16777216
dbnosync
access to attrs=userPassword by anonymous auth by * none
access to * by users read by * none
"""

_PEOPLE = f"""\
dn: {BASE}
objectClass: domain
dc: example

dn: {SERVICE}
objectClass: person
cn: service
sn: service
userPassword: {PASSWORD}

dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{BASE}
objectClass: organizationalUnit
ou: groups

dn: ou=elsewhere,{BASE}
objectClass: referral
objectClass: extensibleObject
ou: elsewhere
ref: ldap://127.0.0.1:1/ou=people,{BASE}
"""


@dataclass(frozen=True, slots=True)
class DirectoryAddress:
    """The directory's addresses. `port` offers StartTLS and requires it for passwords; `tls_port` uses implicit TLS."""

    host: str
    port: int
    tls_port: int
    authority: Path
    """PEM file of the authority that signed the server's certificate."""
    strange_authority: Path
    """PEM file of another authority, which has not signed the certificate."""


@contextmanager
def slapd_server() -> Generator[DirectoryAddress]:
    """Start slapd with people below `ou=people` and groups below `ou=groups`. A person's password is `<uid>'s
    password`.

    The people are `ana` (in analysts, admins, engineers), `bob` (engineers; no mail), `twin` (two entries),
    `we*ird(x)\\y` and the accented `élodie`. `service` may search; anonymous searches are refused.
    """
    server = require(_program("slapd"), "ldap")
    with data_directory() as directory:
        authority = Authority()
        authority.certify("localhost", "127.0.0.1").write(directory)
        files = directory / "authority.pem", directory / "strange.pem"
        files[0].write_text(authority.certificate)
        files[1].write_text(Authority().certificate)
        data, settings, entries = directory / "data", directory / "slapd.conf", directory / "entries.ldif"
        data.mkdir()
        settings.write_text(_SETTINGS.format(directory=directory, base=BASE))
        entries.write_text(_PEOPLE + "".join(_persons()) + "".join(_groups()))
        loaded = subprocess.run([server, "-Tadd", "-f", settings, "-l", entries], capture_output=True, text=True)
        if loaded.returncode:
            pytest.fail(f"{server} took no entries: {loaded.stderr[-2000:]}")
        address = DirectoryAddress("127.0.0.1", free_port(), free_port(), *files)
        urls = f"ldap://127.0.0.1:{address.port}/ ldaps://127.0.0.1:{address.tls_port}/"
        command = [server, "-f", settings, "-h", urls, "-d", "0"]
        with serving(command, directory, lambda: listens(address.tls_port), signal.SIGTERM, options=_AS_ME):
            yield address


def _persons() -> Generator[str]:
    yield _person("ana", unit="people", first_name="Ana", mail="ana@example.test")
    yield _person("bob", unit="people")
    yield _person("we*ird(x)\\y", unit="people", dn=r"we\2aird\28x\29\5cy")
    yield _person("élodie", unit="people")
    yield _person("twin", unit="people")
    yield _person("twin", unit="groups")


def _person(uid: str, *, unit: str, dn: str = "", first_name: str = "", mail: str = "") -> str:
    more = [f"givenName: {first_name}"] * bool(first_name) + [f"mail: {mail}"] * bool(mail)
    lines = [
        f"dn: uid={dn or uid},ou={unit},{BASE}",
        "objectClass: inetOrgPerson",
        f"uid: {uid}",
        f"cn: {uid}",
        f"sn: {uid.capitalize()}",
        f"userPassword: {uid}'s password",
        *more,
    ]
    return "\n" + "\n".join(lines) + "\n"


def _groups() -> Generator[str]:
    for name, members in (("analysts", ["ana"]), ("admins", ["ana"]), ("engineers", ["ana", "bob"])):
        held = "".join(f"member: uid={uid},ou=people,{BASE}\n" for uid in members)
        yield f"\ndn: cn={name},ou=groups,{BASE}\nobjectClass: groupOfNames\ncn: {name}\n{held}"
    yield f"\ndn: cn=posix,ou=groups,{BASE}\nobjectClass: posixGroup\ncn: posix\ngidNumber: 1\nmemberUid: ana\n"


def _program(name: str) -> Path | None:
    found = shutil.which(name, path=_PROGRAMS)
    return Path(found) if found else None
