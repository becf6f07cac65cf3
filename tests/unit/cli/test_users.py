"""The commands for groups and identity links (Contract platform 12); tests/unit/identity tests the underlying rules."""

import json
from pathlib import Path

import pytest
from tests.unit.cli.test_commands import PASSWORD, Command, command_in

ISSUER = "https://login.example"
ISSUERS = f"acme_login.MailServer, jwt:{ISSUER}, ldap"


@pytest.fixture
def command(tmp_path: Path, database_dsn: str) -> Command:
    """Provide a function that runs the program on a migrated database with the settings of a key server."""
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__AUTH__JWT__KEY_SERVER_URL="https://login.example/keys",
        QUERYSERVER__DESKTOP__AUTH__JWT__ISSUER=ISSUER,
        QUERYSERVER__DESKTOP__AUTH__JWT__AUDIENCE="queryserver",
        QUERYSERVER__DESKTOP__AUTH__BACKEND="local,ldap,acme_login:MailServer",
        QUERYSERVER__DESKTOP__LDAP__LDAP_URL="ldaps://directory.example",
        QUERYSERVER__DESKTOP__LDAP__BASE_DN="dc=example",
    )


async def done(command: Command, arguments: str, out: str = "") -> None:
    ended = await command(*arguments.split())
    assert (ended.code, ended.out) == (0, out), (arguments, ended.err)


async def test_link_can_be_created_listed_and_deleted(command: Command) -> None:
    assert (await command("create-user", "ana", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 0
    await done(command, "link-user ANA --issuer ldap", "ana of ldap is now linked to the user ANA.\n")
    await done(
        command,
        f"link-user ana --issuer jwt:{ISSUER} --subject auth0|7",
        f"auth0|7 of jwt:{ISSUER} is now linked to the user ana.\n",
    )
    assert (await command("create-user", "bob", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 0
    await done(
        command,
        "link-user bob --issuer acme_login.MailServer",
        "bob of acme_login.MailServer is now linked to the user bob.\n",
    )
    await done(
        command,
        "list-links ana --no-header",
        f"ana\tjwt:{ISSUER}\tauth0|7\tadministrator\nana\tldap\tana\tadministrator\n",
    )
    listed = json.loads((await command("list-links", "--json")).out)
    assert [(one["username"], one["issuer"], one["subject"], one["by_administrator"]) for one in listed] == [
        ("ana", f"jwt:{ISSUER}", "auth0|7", True),
        ("ana", "ldap", "ana", True),
        ("bob", "acme_login.MailServer", "bob", True),
    ]
    await done(command, "create-user cy --admin --issuer ldap --subject Cy", "User cy created.\n")
    await done(command, "list-links cy --no-header", "cy\tldap\tcy\tadministrator\n")
    await done(
        command,
        "list-users --no-header",
        "ana\tuser\tactive\tdefault\t\nbob\tuser\tactive\tdefault\t\ncy\tadmin\tactive\tdefault\t\n",
    )
    await done(command, "unlink-user ana --issuer ldap --subject ANA", "1 links removed.\n")
    await done(command, "unlink-user --all --issuer acme_login.MailServer", "1 links removed.\n")
    await done(command, "list-links ana --no-header", f"ana\tjwt:{ISSUER}\tauth0|7\tadministrator\n")


async def test_failed_link_commands_report_the_cause(command: Command) -> None:
    for name in ("ana", "bob"):
        assert (await command("create-user", name, "--password-stdin", stdin=f"{PASSWORD}\n")).code == 0
    assert (await command("link-user", "ana", "--issuer", "ldap", "--subject", "taken")).code == 0
    taken = "The subject taken is already linked to another user."
    unknown = f"issuer: jwt:https://other.example is not in the settings. Configured issuers: {ISSUERS}."
    for arguments, code, message in (
        ("link-user nobody --issuer ldap", 1, "User nobody does not exist."),
        ("create-user cy --issuer ldap --subject taken", 1, taken),
        ("link-user bob --issuer ldap --subject taken", 1, taken),
        ("link-user bob --issuer jwt:https://other.example", 2, unknown),
    ):
        ended = await command(*arguments.split())
        assert (ended.code, ended.out) == (code, ""), arguments
        assert message in ended.err.splitlines(), arguments


async def test_wrong_usage_exits_with_2(command: Command, subtests: pytest.Subtests) -> None:
    for arguments in [
        "link-user ana",
        "create-user ana --subject x",
        "unlink-user",
        "unlink-user --all",
        "unlink-user ana --all",
    ]:
        with subtests.test(arguments=arguments):
            assert (await command(*arguments.split())).code == 2


@pytest.mark.platform(54)
async def test_group_can_be_created_changed_and_deleted(command: Command) -> None:
    assert (await command("create-user", "ana", "--password-stdin", stdin=f"{PASSWORD}\n")).code == 0
    await done(command, "create-group analysts")
    await done(command, "grant analysts connector:7")
    await done(command, "add-to-group ANA analysts")
    await done(command, "list-grants analysts", "GROUP\tRIGHTS\tMEMBERS\nanalysts\tconnector:7\t1\n")
    await done(command, "ungrant analysts connector:7")
    await done(command, "remove-from-group ana analysts")
    listed = json.loads((await command("list-grants", "--json")).out)
    assert [group["name"] for group in listed] == ["analysts", "default"]
    assert listed[0] == {"name": "analysts", "rights": [], "members": 0}
    await done(command, "delete-group analysts")


async def test_failed_group_commands_report_the_cause(command: Command, subtests: pytest.Subtests) -> None:
    for arguments, code, message in [
        ("delete-group default", 1, "Group default is the default group of new users and cannot be deleted."),
        ("add-to-group nobody default", 1, "User nobody does not exist."),
        ("grant nothing fly", 2, "There is no right fly."),
    ]:
        with subtests.test(arguments=arguments, code=code, message=message):
            ended = await command(*arguments.split())
            # The log line of the audit event may precede or follow the message.
            assert (ended.code, ended.out) == (code, "")
            assert message in ended.err.splitlines()
