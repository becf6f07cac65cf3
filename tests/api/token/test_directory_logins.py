"""A real LDAP directory authenticates logins (Contract platform 4.1)."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from ssl import create_default_context
from typing import Any

import pytest
from tests.api.driving import Api, verdict
from tests.api.token.logins import PASSWORD, Opener, accounts, link, log_in
from tests.engines.relay import connect, passed_on
from tests.engines.slapd import BASE, SERVICE, DirectoryAddress
from tests.engines.slapd import PASSWORD as SERVICE_PASSWORD
from tests.ports import free_port

from queryserver.identity.ldap import LdapSearch, both, filter_value, name_value
from queryserver.identity.ldap3_directory import Ldap3Session
from queryserver.identity.model import AuthenticatedUser
from queryserver.identity.repository import Account
from queryserver.identity.users import Groups
from queryserver.platform.settings.desktop import AuthSettings, LdapSettings

pytestmark = pytest.mark.engine("ldap")

PEOPLE = f"ou=people,{BASE}"
ANAS = "ana's password"
Directories = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def directory(opener: Opener, ldap_server: DirectoryAddress) -> Directories:
    """A function that opens an application. It authenticates logins first locally and then in the directory."""

    def opened(
        backend: tuple[str, ...] = ("local", "ldap"), auth: dict[str, Any] | None = None, **changes: Any
    ) -> AbstractAsyncContextManager[Api]:
        ldap = {
            "ldap_url": f"ldap://{ldap_server.host}:{ldap_server.port}",
            "ldap_cert": ldap_server.authority,
            "base_dn": BASE,
            "bind_dn": SERVICE,
            "bind_password": SERVICE_PASSWORD,
            "users": {"user_name_attr": "uid"},
            **changes,
        }
        return opener({"ldap": LdapSettings.model_validate(ldap)}, backend=backend, **(auth or {}))

    return opened


def over_tls(server: DirectoryAddress) -> dict[str, Any]:
    return {"ldap_url": f"ldaps://{server.host}:{server.tls_port}"}


DIRECT = {"search_bind_authentication": False, "ldap_username_pattern": f"uid=<username>,{PEOPLE}", "bind_dn": ""}


async def attempt(api: Api, username: str = "ana", password: str = ANAS) -> int:
    return (await api.stranger.post("token/auth", username=username, password=password)).status_code


async def account(api: Api, username: str = "ana") -> Account:
    return next(one for one in await accounts(api).all() if one.username == username)


# Each case starts with a new database, which has no users.
@pytest.mark.parametrize("settings", [{}, DIRECT])
@pytest.mark.parametrize("tls", [False, True])
async def test_first_directory_login_creates_the_user(directory, ldap_server, settings, tls):
    async with directory(**settings, **(over_tls(ldap_server) if tls else {})) as api:
        assert [await attempt(api, password=wrong) for wrong in ("", "wrong", PASSWORD)] == [400, 401, 401]
        assert await accounts(api).all() == []
        await log_in(api, " ANA ", ANAS)
        assert await attempt(api) == 200
        ana = await account(api)
        assert (ana.first_name, ana.last_name, ana.email) == ("Ana", "Ana", "ana@example.test")
        assert (ana.is_admin, ana.has_password, ana.groups) == (False, False, ("default",))
        await log_in(api, "Élodie", "élodie's password")
        assert (await account(api, "élodie")).groups == ("default",)


@pytest.mark.security("T15")
async def test_all_refusals_look_the_same(directory: Directories) -> None:
    async with directory() as api:
        await log_in(api, "bob", "bob's password")
        await accounts(api).create(AuthenticatedUser("cy"), PASSWORD)
        await accounts(api).disable("bob")
        refused = [
            await api.stranger.post("token/auth", username=username, password=password)
            for username, password in (
                ("ana", "wrong"),
                ("nobody", ANAS),
                ("bob", "bob's password"),
                ("twin", "twin's password"),
                ("cy", "wrong"),
            )
        ]
        assert {(one.status_code, one.text) for one in refused} == {
            (401, '{"detail":"No active account found with the given credentials"}')
        }


@pytest.mark.parametrize("settings", [{}, DIRECT])
@pytest.mark.parametrize("secure", [False, True])
async def test_certificate_of_an_untrusted_authority_is_refused(directory, ldap_server, settings, secure):
    more = over_tls(ldap_server) if secure else {}
    async with directory(ldap_cert=ldap_server.strange_authority, **settings, **more) as api:
        assert await attempt(api) == 503


async def test_certificate_for_another_host_is_refused(directory: Directories, ldap_server: DirectoryAddress) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await connect(f"tcp:127.0.0.1:{ldap_server.tls_port}")
        await asyncio.gather(passed_on(reader, far_writer), passed_on(far_reader, writer))

    # A proxy makes the server reachable at an address for which its certificate is not valid.
    for host, answer in (("127.0.0.1", 200), ("127.0.0.2", 503)):
        async with await asyncio.start_server(accept, host, 0) as way:
            port = way.sockets[0].getsockname()[1]
            async with directory(ldap_url=f"ldaps://{host}:{port}") as api:
                assert await attempt(api) == answer


async def test_login_synchronizes_existing_groups_with_the_directory(directory: Directories) -> None:
    async with directory() as api:
        for name in ("analysts", "local"):
            await Groups(api.database, AuthSettings()).create(name)
        await log_in(api, "ana", ANAS)
        assert (await account(api)).groups == ("analysts", "default")
        groups = Groups(api.database, AuthSettings())
        await groups.add("ana", "local")
        await groups.create("engineers")
        await log_in(api, "ana", ANAS)
        assert (await account(api)).groups == ("analysts", "default", "engineers")


async def test_directory_groups_do_not_grant_administration(directory: Directories) -> None:
    async with directory() as api:
        await Groups(api.database, AuthSettings()).create("admins")
        await Groups(api.database, AuthSettings()).grant("admins", "admin")
        tokens = await log_in(api, "ana", ANAS)
        assert (await account(api)).groups == ("default",)
        asked = await api.http.get("/api/v1/iam/get_users", headers={"Authorization": f"Bearer {tokens['access']}"})
        assert asked.status_code == 403


async def test_first_directory_login_may_become_administrator(directory: Directories) -> None:
    async with directory(("ldap",), auth={"first_login_becomes_admin": True}) as api:
        assert await attempt(api, password=PASSWORD) == 401
        assert await accounts(api).all() == []
        both = await asyncio.gather(attempt(api), attempt(api, "bob", "bob's password"))
        assert both == [200, 200]
        assert sorted(one.is_admin for one in await accounts(api).all()) == [False, True]


async def test_groups_stay_unchanged_without_synchronization(directory: Directories) -> None:
    async with directory(sync_groups_on_login=False) as api:
        await Groups(api.database, AuthSettings()).create("analysts")
        await log_in(api, "ana", ANAS)
        assert (await account(api)).groups == ("default",)


async def test_unknown_users_can_be_refused(directory: Directories) -> None:
    async with directory(create_users_on_login=False) as api:
        assert await attempt(api) == 401
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        assert [await attempt(api), await attempt(api, password=PASSWORD)] == [401, 200]
        await link(api, "ana", "ANA", issuer="ldap")  # directories compare names without regard to case
        assert [await attempt(api), await attempt(api, password=PASSWORD)] == [200, 200]


async def test_login_groups_and_filters_restrict_logins(directory: Directories) -> None:
    async with directory(login_groups=("Analysts",)) as api:
        assert [await attempt(api), await attempt(api, "bob", "bob's password")] == [200, 401]
    posix = {"group_filter": "objectclass=posixGroup", "group_member_attr": "memberUid"}
    async with directory(login_groups=("posix",), groups=posix) as api:
        assert [await attempt(api), await attempt(api, "bob", "bob's password")] == [200, 401]
    for settings in ({}, DIRECT):
        async with directory(**settings, users={"user_name_attr": "uid", "user_filter": "(|(uid=bob)(uid=cy))"}) as api:
            assert [await attempt(api), await attempt(api, "bob", "bob's password")] == [401, 200]


@pytest.mark.platform(48)
@pytest.mark.parametrize("backend", [("local", "ldap"), ("ldap", "local")])
async def test_directory_outage_blocks_only_directory_users(directory, backend):
    async with directory(backend, ldap_url=f"ldap://127.0.0.1:{free_port()}") as api:
        await accounts(api).create(AuthenticatedUser("cy"), PASSWORD)
        assert await attempt(api, "cy", PASSWORD) == 200
        refused = await api.stranger.post("token/auth", username="ana", password=ANAS)
        assert verdict(refused) == (503, -1, "login_backend_unavailable")
        assert refused.headers["retry-after"]
        assert "127.0.0.1" not in refused.text


@pytest.mark.platform(48)
@pytest.mark.security("T16")
@pytest.mark.parametrize("username", ["*", "a*", "ana)(uid=*", "*)(objectclass=*", "ana\\2a", "\\", "(", "ana\0"])
async def test_user_names_cannot_alter_the_search_filter(directory, ldap_server, username):
    async with directory() as api:
        refused = await api.stranger.post_json("token/auth", username=username, password=ANAS)
        assert refused.status_code == (400 if "\0" in username else 401)
    server = f"ldap://127.0.0.1:{ldap_server.port}"
    with closing(Ldap3Session(server, 10, create_default_context(cafile=ldap_server.authority))) as session:
        assert session.bind(SERVICE, SERVICE_PASSWORD)
        wanted = both("objectclass=*", f"uid={filter_value(username)}")
        assert session.entries(LdapSearch(BASE, wanted, ("uid",), 10)) == []


@pytest.mark.platform(48)
@pytest.mark.security("T16")
async def test_escaped_names_find_their_entry(ldap_server: DirectoryAddress) -> None:
    name = "we*ird(x)\\y"
    server = f"ldaps://127.0.0.1:{ldap_server.tls_port}"
    with closing(Ldap3Session(server, 10, create_default_context(cafile=ldap_server.authority))) as session:
        assert session.bind(f"uid={name_value(name)},{PEOPLE}", f"{name}'s password")
        [found] = session.entries(LdapSearch(BASE, both(f"uid={filter_value(name)}"), ("uid",), 10))
        assert found.values("uid") == (name,)


async def test_referrals_to_other_servers_are_not_followed(ldap_server: DirectoryAddress) -> None:
    server = f"ldap://127.0.0.1:{ldap_server.port}"
    with closing(Ldap3Session(server, 10, create_default_context(cafile=ldap_server.authority))) as session:
        assert session.bind(SERVICE, SERVICE_PASSWORD)
        assert session.entries(LdapSearch(f"ou=elsewhere,{BASE}", "(uid=ana)", ("uid",), 2)) == []
        whole = session.entries(LdapSearch(BASE, "(objectclass=*)", ("cn",), 5000))
        assert len(whole) > 10
        assert len({entry.dn for entry in whole}) == len(whole)


async def test_session_refuses_binds_without_tls_and_empty_passwords(ldap_server: DirectoryAddress) -> None:
    server = f"ldap://127.0.0.1:{ldap_server.port}"
    with (
        closing(Ldap3Session(server, 10, create_default_context(cafile=ldap_server.authority))) as session,
        pytest.raises(ValueError, match="empty password"),
    ):
        session.bind(f"uid=ana,{PEOPLE}", "")
