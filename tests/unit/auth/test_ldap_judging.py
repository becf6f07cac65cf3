"""Whom a directory lets in, as whom, and in which groups (Contract platform 4.1)."""

from typing import Any

import pytest
from tests.fakes.directory import BASE, FakeDirectory, group, person

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.ldap.login import Entry, Judge, LdapLogin
from queryserver.identity.model import AuthenticatedUser, UsernameRule
from queryserver.identity.protocols import RequestInfo
from queryserver.platform.settings.desktop import LdapSettings

SERVICE = f"cn=service,{BASE}"
PASSWORD = "correct horse battery"
ANA = person("ana", givenname="Ana", sn="Lyse", mail="ana@example.test")
GROUPS_OF_ANA = f"member={ANA.dn}"


def directory(**answers: list[Entry]) -> FakeDirectory:
    return FakeDirectory(
        {SERVICE: "service", ANA.dn: PASSWORD},
        {"uid=ana)": [ANA], GROUPS_OF_ANA: [group("b"), group("a")], **answers},
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
    with LdapLogin.open(asked, Judge(ldap, rule or UsernameRule())) as backend:
        return await backend.login(username, password, RequestInfo("127.0.0.1"))


DIRECT = {"search_bind_authentication": False, "ldap_username_pattern": f"uid=<username>,ou=people,{BASE}"}


async def test_search_and_bind_finds_the_entry_and_then_lets_it_log_in() -> None:
    asked = directory()
    assert await login(asked) == AuthenticatedUser("ana", "Ana", "Lyse", "ana@example.test", ("a", "b"))
    assert [name for name, _ in asked.logins] == [SERVICE, ANA.dn, SERVICE]
    assert [search.base for search in asked.searches] == [BASE, BASE]
    assert asked.searches[0].filter == "(&(objectclass=*)(uid=ana))"


async def test_a_direct_bind_uses_the_pattern_and_reads_the_own_entry_only() -> None:
    asked = FakeDirectory({ANA.dn: PASSWORD}, {ANA.dn: [ANA]})
    assert await login(asked, **DIRECT) == AuthenticatedUser("ana", "Ana", "Lyse", "ana@example.test", ())
    assert asked.logins == [(ANA.dn, PASSWORD)]
    assert (asked.searches[0].base, asked.searches[0].only_base) == (ANA.dn, True)


async def test_a_domain_makes_the_login_of_a_direct_bind() -> None:
    asked = FakeDirectory({"ana@corp.test": PASSWORD}, {"uid=ana)": [ANA]})
    accepted = await login(asked, search_bind_authentication=False, nt_domain="corp.test", sync_groups_on_login=False)
    assert accepted == AuthenticatedUser("ana", "Ana", "Lyse", "ana@example.test", None)
    assert asked.logins == [("ana@corp.test", PASSWORD)]


@pytest.mark.security("T16")
async def test_what_joins_parts_of_a_name_is_escaped_in_the_pattern() -> None:
    asked = FakeDirectory({})
    assert await login(asked, "ana+bob", **DIRECT) is None
    assert asked.logins == [(f"uid=ana\\2bbob,ou=people,{BASE}", PASSWORD)]


@pytest.mark.platform(48)
@pytest.mark.parametrize("settings", [{}, DIRECT])
async def test_an_empty_password_is_never_sent(settings: dict[str, Any]) -> None:
    asked = directory()
    assert await login(asked, password="", **settings) is None
    assert (asked.logins, asked.searches) == ([], [])


@pytest.mark.platform(48)
@pytest.mark.security("T16")
@pytest.mark.parametrize("username", ["*", "ana)(uid=*", "ana\\2a", "a\0na", "(ana)", "ana,ou=admins", " ", "."])
async def test_names_that_no_user_can_have_are_never_sent(username: str) -> None:
    asked = directory()
    assert await login(asked, username) is None
    assert (asked.logins, asked.searches) == ([], [])


async def test_a_wrong_password_and_an_unknown_name_cost_the_same_steps() -> None:
    wrong, unknown = directory(), directory()
    assert await login(wrong, password="wrong") is None
    assert await login(unknown, "nobody") is None
    assert len(wrong.logins) == len(unknown.logins) == 2
    assert len(wrong.searches) == len(unknown.searches) == 1
    name, sent = unknown.logins[1]
    assert name.endswith(f",{BASE}")
    assert (name, sent) not in {(SERVICE, "service"), (ANA.dn, PASSWORD)}


async def test_a_name_of_two_entries_is_nobodys() -> None:
    asked = directory(**{"uid=ana)": [ANA, person("ana2", "ana")]})
    assert await login(asked) is None
    assert ANA.dn not in {name for name, _ in asked.logins}


async def test_the_entry_says_what_the_user_is_called() -> None:
    # Directories compare names without case and without width: what was typed is only how the entry was found.
    rule = UsernameRule(ignore_case=False, force_lowercase=False)
    typed = {"uid=ANA)": [person("ana")]}
    accepted = await login(directory(**typed), "ANA", rule=rule, sync_groups_on_login=False)
    assert accepted is not None
    assert accepted.username == "ana"


async def test_of_several_names_the_typed_one_counts() -> None:
    asked = directory(**{"uid=ana)": [person("ana", "a b", "anabel", "ANA")]})
    accepted = await login(asked)
    assert accepted is not None
    assert accepted.username == "ana"


@pytest.mark.parametrize(
    ("written", "name"),
    [("ANA", "ana"), ("Ana", "ana"), ("\uff41na", None), (" ana ", None), ("a\u0301na", "\u00e1na")],
    ids=["upper", "title", "wide", "blanks", "composed"],
)
async def test_the_name_of_an_entry_may_differ_from_that_of_the_user_in_case_alone(
    written: str, name: str | None
) -> None:
    entry = person(written)
    asked = FakeDirectory({SERVICE: "service", entry.dn: PASSWORD}, {"uid=ana)": [entry]})
    accepted = await login(asked)
    assert (accepted and accepted.username) == name


async def test_an_entry_without_a_usable_name_lets_nobody_in() -> None:
    assert await login(directory(**{"uid=ana)": [Entry(ANA.dn, {})]})) is None


@pytest.mark.parametrize(("groups", "enters"), [(("B", "c"), True), (("c",), False), ((), True)])
async def test_login_groups_limit_who_enters(groups: tuple[str, ...], enters: bool) -> None:
    assert (await login(directory(), login_groups=groups) is not None) is enters


async def test_without_synchronisation_groups_are_read_for_login_groups_only() -> None:
    asked = directory()
    accepted = await login(asked, sync_groups_on_login=False, login_groups=("a",))
    assert accepted is not None
    assert accepted.groups is None
    unread = directory()
    assert await login(unread, sync_groups_on_login=False) is not None
    assert len(unread.searches) == 1


async def test_groups_of_names_hold_names() -> None:
    asked = directory(**{"memberUid=ana)": [group("posix")]})
    accepted = await login(asked, groups={"group_member_attr": "memberUid", "group_filter": "(objectclass=posixGroup)"})
    assert accepted is not None
    assert accepted.groups == ("posix",)
    assert asked.searches[1].filter == "(&(objectclass=posixGroup)(memberUid=ana))"


async def test_a_refused_service_is_a_directory_out_of_reach() -> None:
    with pytest.raises(LoginBackendUnavailable, match="bind_dn"):
        await login(directory(), bind_password="old")
