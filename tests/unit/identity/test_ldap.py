"""Logins through an LDAP directory: settings, escaping, login rules and connections (Contract platform 4.1)."""

import asyncio
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ldap3.operation.search import MATCH_EQUAL, MATCH_PRESENT, parse_filter
from ldap3.utils.dn import parse_dn
from tests.fakes.directory import BASE, FakeDirectory, group, person
from tests.ports import free_port
from tests.timing import at_best, until

from queryserver.errors.base import ConfigurationError, LoginBackendUnavailable
from queryserver.identity.build import directory_login
from queryserver.identity.ldap import Entry, LdapLogin, both, filter_value, name_value
from queryserver.identity.ldap3_directory import Ldap3Session
from queryserver.identity.model import AuthenticatedUser, RequestInfo, UsernameRule
from queryserver.platform.settings.desktop import LdapSettings
from queryserver.platform.settings.loader import read_settings

GOOD = {"ldap_url": "ldaps://directory.test", "base_dn": "dc=test"}


def problems(ldap: LdapSettings) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        directory_login(ldap, UsernameRule())
    return raised.value.problems


def test_missing_package_is_reported_for_the_ldap_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ldap3", None)
    monkeypatch.delitem(sys.modules, "queryserver.identity.ldap3_directory", raising=False)
    [problem] = problems(LdapSettings.model_validate(GOOD))
    assert problem == "desktop.auth.backend: ldap requires the package ldap3. Install queryserver[ldap]."


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_unusable_certificate_file_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    [problem] = problems(LdapSettings.model_validate({**GOOD, "ldap_cert": file}))
    assert problem.startswith(f"desktop.ldap.ldap_cert: {file}")


def test_valid_configuration_sends_nothing_at_startup() -> None:
    directory_login(LdapSettings.model_validate(GOOD), UsernameRule()).close()


def test_servers_without_a_directory_do_not_load_its_package() -> None:
    code = "import sys, queryserver.identity.build; sys.exit('ldap3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("ldap", "key"),
    [
        ("base_dn = 'dc=test'", "ldap_url"),
        ("ldap_url = 'http://d'\nbase_dn = 'dc=test'", "ldap_url"),
        ("ldap_url = 'ldap://'\nbase_dn = 'dc=test'", "ldap_url"),
        ("ldap_url = 'ldaps://d'", "base_dn"),
        ("ldap_url = 'ldaps://d'\nbase_dn = 'dc=test'\nbind_dn = 'cn=service'", "bind_password"),
        (
            "ldap_url = 'ldaps://d'\nbase_dn = 'b'\nsearch_bind_authentication = false\nldap_username_pattern = 'ana'",
            "ldap_username_pattern",
        ),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, ldap: str, key: str) -> None:
    file = tmp_path / "queryserver.toml"
    file.write_text(f"[desktop.auth]\nbackend = 'local,ldap'\n[desktop.ldap]\n{ldap}\n")
    assert [problem.partition(":")[0] for problem in read_settings(file, {}).problems] == [f"desktop.ldap.{key}"]


@pytest.mark.parametrize("ldap", [
    "", "search_bind_authentication = false\nldap_username_pattern = 'uid=<username>,dc=test'\n",
             "search_bind_authentication = false\nnt_domain = 'corp.test'\n"])  # fmt: skip
def test_valid_settings_are_accepted(tmp_path: Path, ldap: str) -> None:
    file = tmp_path / "queryserver.toml"
    address = "ldap_url = 'ldap://d:3890'\nbase_dn = 'dc=test'\n"
    file.write_text(f"[desktop.auth]\nbackend = 'ldap'\n[desktop.ldap]\n{address}{ldap}")
    assert read_settings(file, {}).problems == []


pytestmark = [pytest.mark.platform(48), pytest.mark.security("T16")]

_TEXT = st.text(
    st.one_of(st.sampled_from('*()\\\0,+"<>;=#/ &|!~'), st.characters(exclude_categories=["Cs"])), min_size=1
)


@given(_TEXT)
@example("*)(uid=*")
@example("*)(|(objectclass=*")
@example("\0")
@example("\\2a")
@example("a\\")
def test_filter_has_one_equality_with_the_escaped_text(text: str) -> None:
    parsed = parse_filter(both("objectclass=*", f"uid={filter_value(text)}"), None, False, False, None, False)
    [conjunction] = parsed.elements
    present, equal = conjunction.elements
    assert (present.assertion["attr"], equal.assertion["attr"]) == ("objectclass", "uid")
    assert (present.tag, equal.tag) == (MATCH_PRESENT, MATCH_EQUAL)
    assert _unescaped(equal.assertion["value"]) == text


@given(_TEXT)
@example("ana,ou=admins")
@example("ana+uid=admin")
@example(" #a ")
@example("\0")
@example(" ")
def test_distinguished_name_has_one_part_with_the_escaped_text(text: str) -> None:
    parts = parse_dn(f"uid={name_value(text)},dc=example,dc=test")
    assert [(attribute, end) for attribute, _, end in parts] == [("uid", ","), ("dc", ","), ("dc", "")]
    assert _unescaped(parts[0][1]) == text


@pytest.mark.parametrize("given", ["objectclass=person", "(objectclass=person)"])
def test_configured_filter_may_lack_parentheses(given: str) -> None:
    assert both(given, "uid=ana") == "(&(objectclass=person)(uid=ana))"


def _unescaped(value: str | bytes) -> str:
    """Unescape a value as a directory server does: each pair of hexadecimal digits stands for one byte."""
    raw = value if isinstance(value, bytes) else value.encode()
    return re.sub(rb"\\([0-9a-f]{2})", lambda pair: bytes([int(pair[1], 16)]), raw).decode()


SERVICE = f"cn=service,{BASE}"
PASSWORD = "correct horse battery"
ANA = person("ana", givenname="Ana", sn="Lyse", mail="ana@example.test")
GROUPS_OF_ANA = f"member={ANA.dn}"


def directory(**answers: list[Entry]) -> FakeDirectory:
    return FakeDirectory(
        {SERVICE: "service", ANA.dn: PASSWORD}, {"uid=ana)": [ANA], GROUPS_OF_ANA: [group("b"), group("a")], **answers}
    )


async def login(
    asked: FakeDirectory,
    username: str = "ana",
    password: str = PASSWORD,
    *,
    rule: UsernameRule | None = None,
    **settings: Any,
) -> AuthenticatedUser | None:
    ldap = LdapSettings.model_validate(
        {
            "base_dn": BASE,
            "bind_dn": SERVICE,
            "bind_password": "service",
            "users": {"user_name_attr": "uid"},
            **settings,
        }
    )
    with closing(LdapLogin(asked.session, ldap, rule or UsernameRule())) as backend:
        return await backend.login(username, password, RequestInfo("127.0.0.1"))


DIRECT = {"search_bind_authentication": False, "ldap_username_pattern": f"uid=<username>,ou=people,{BASE}"}


async def test_search_and_bind_finds_the_entry_and_binds_with_its_name() -> None:
    asked = directory()
    assert await login(asked) == AuthenticatedUser("ana", "Ana", "Lyse", "ana@example.test", ("a", "b"))
    assert [name for name, _ in asked.logins] == [SERVICE, ANA.dn, SERVICE]
    assert [search.base for search in asked.searches] == [BASE, BASE]
    assert asked.searches[0].filter == "(&(objectclass=*)(uid=ana))"


async def test_direct_bind_uses_the_pattern_and_reads_its_own_entry_only() -> None:
    asked = FakeDirectory({ANA.dn: PASSWORD}, {ANA.dn: [ANA]})
    assert await login(asked, **DIRECT) == AuthenticatedUser("ana", "Ana", "Lyse", "ana@example.test", ())
    assert asked.logins == [(ANA.dn, PASSWORD)]
    assert (asked.searches[0].base, asked.searches[0].only_base) == (ANA.dn, True)


async def test_domain_forms_the_login_name_of_a_direct_bind() -> None:
    asked = FakeDirectory({"ana@corp.test": PASSWORD}, {"uid=ana)": [ANA]})
    accepted = await login(asked, search_bind_authentication=False, nt_domain="corp.test", sync_groups_on_login=False)
    assert accepted == AuthenticatedUser("ana", "Ana", "Lyse", "ana@example.test", None)
    assert asked.logins == [("ana@corp.test", PASSWORD)]


@pytest.mark.security("T16")
async def test_name_separators_are_escaped_in_the_pattern() -> None:
    asked = FakeDirectory({})
    assert await login(asked, "ana+bob", **DIRECT) is None
    assert asked.logins == [(f"uid=ana\\2bbob,ou=people,{BASE}", PASSWORD)]


@pytest.mark.platform(48)
@pytest.mark.parametrize("settings", [{}, DIRECT])
async def test_empty_password_is_never_sent(settings: dict[str, Any]) -> None:
    asked = directory()
    assert await login(asked, password="", **settings) is None
    assert (asked.logins, asked.searches) == ([], [])


@pytest.mark.platform(48)
@pytest.mark.security("T16")
@pytest.mark.parametrize("username", ["*", "ana)(uid=*", "ana\\2a", "a\0na", "(ana)", "ana,ou=admins", " ", "."])
async def test_invalid_user_names_are_never_sent(username: str) -> None:
    asked = directory()
    assert await login(asked, username) is None
    assert (asked.logins, asked.searches) == ([], [])


async def test_wrong_password_and_unknown_name_take_the_same_steps() -> None:
    wrong, unknown = directory(), directory()
    assert await login(wrong, password="wrong") is None
    assert await login(unknown, "nobody") is None
    assert len(wrong.logins) == len(unknown.logins) == 2
    assert len(wrong.searches) == len(unknown.searches) == 1
    name, sent = unknown.logins[1]
    assert name.endswith(f",{BASE}")
    assert (name, sent) not in {(SERVICE, "service"), (ANA.dn, PASSWORD)}


async def test_name_with_two_entries_cannot_log_in() -> None:
    asked = directory(**{"uid=ana)": [ANA, person("ana2", "ana")]})
    assert await login(asked) is None
    assert ANA.dn not in {name for name, _ in asked.logins}


async def test_entry_determines_the_user_name() -> None:
    # Directories ignore case and width in names, so the username comes from the entry and not from the login.
    rule = UsernameRule(ignore_case=False, force_lowercase=False)
    typed = {"uid=ANA)": [person("ana")]}
    accepted = await login(directory(**typed), "ANA", rule=rule, sync_groups_on_login=False)
    assert accepted is not None
    assert accepted.username == "ana"


async def test_typed_name_is_chosen_among_several() -> None:
    asked = directory(**{"uid=ana)": [person("ana", "a b", "anabel", "ANA")]})
    accepted = await login(asked)
    assert accepted is not None
    assert accepted.username == "ana"


@pytest.mark.parametrize(
    ("written", "name"),
    [("ANA", "ana"), ("Ana", "ana"), ("\uff41na", None), (" ana ", None), ("a\u0301na", "\u00e1na")],
)
async def test_entry_name_may_differ_from_the_user_name_in_case_only(written, name) -> None:
    entry = person(written)
    asked = FakeDirectory({SERVICE: "service", entry.dn: PASSWORD}, {"uid=ana)": [entry]})
    accepted = await login(asked)
    assert (accepted and accepted.username) == name


async def test_entry_without_a_usable_name_cannot_log_in() -> None:
    assert await login(directory(**{"uid=ana)": [Entry(ANA.dn, {})]})) is None


@pytest.mark.parametrize(("groups", "enters"), [(("B", "c"), True), (("c",), False), ((), True)])
async def test_login_groups_restrict_logins(groups: tuple[str, ...], enters: bool) -> None:
    assert (await login(directory(), login_groups=groups) is not None) is enters


async def test_groups_are_read_for_login_groups_only_if_not_synchronized() -> None:
    asked = directory()
    accepted = await login(asked, sync_groups_on_login=False, login_groups=("a",))
    assert accepted is not None
    assert accepted.groups is None
    unread = directory()
    assert await login(unread, sync_groups_on_login=False) is not None
    assert len(unread.searches) == 1


async def test_groups_may_list_members_by_user_name() -> None:
    asked = directory(**{"memberUid=ana)": [group("posix")]})
    accepted = await login(asked, groups={"group_member_attr": "memberUid", "group_filter": "(objectclass=posixGroup)"})
    assert accepted is not None
    assert accepted.groups == ("posix",)
    assert asked.searches[1].filter == "(&(objectclass=posixGroup)(memberUid=ana))"


async def test_rejected_service_login_makes_the_directory_unavailable() -> None:
    with pytest.raises(LoginBackendUnavailable, match="bind_dn"):
        await login(directory(), bind_password="old")


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass
    writer.close()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the start of a long response byte by byte, so that no single read takes long."""
    await reader.read(1000)
    try:
        writer.write(b"\x30\x84\x00\x10\x00\x00")
        while True:
            writer.write(b"\0")
            await writer.drain()
            await asyncio.sleep(0.05)
    except ConnectionError:
        writer.close()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.close()


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[int]:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def refused(url: str) -> tuple[float, None]:
    """Return how many seconds pass until the login fails; check that the error does not reveal the password."""
    ldap, context = LdapSettings(base_dn="dc=test", timeout_s=1), ssl.create_default_context()
    began = time.monotonic()
    with closing(LdapLogin(lambda: closing(Ldap3Session(url, 1, context)), ldap, UsernameRule())) as backend:
        with pytest.raises(LoginBackendUnavailable) as raised:
            await backend.login("ana", "planted password", RequestInfo("127.0.0.1"))
        assert "planted" not in str(raised.value)
        await until(
            lambda: not any(thread.name.startswith("ldap") and _is_busy(thread) for thread in threading.enumerate())
        )
    return time.monotonic() - began, None


def _is_busy(thread: threading.Thread) -> bool:
    import sys
    import traceback

    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and any("ldap3" in line.filename for line in traceback.extract_stack(frame))


@pytest.mark.platform(48)
@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_stopped_server_is_unavailable(scheme: str) -> None:
    await at_best(lambda: refused(f"{scheme}://127.0.0.1:{free_port()}"), below_s=9)


@pytest.mark.parametrize("peer", [silent, dripping, garbage, hanging_up])
@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
async def test_no_peer_delays_a_login_beyond_its_limit(scheme: str, peer: Peer) -> None:
    async with listening(peer) as port:
        await at_best(lambda: refused(f"{scheme}://127.0.0.1:{port}"), below_s=9)
