"""What stops the start of a server whose logins a directory judges (Contract platform 4.1, 11)."""

import subprocess
import sys
from pathlib import Path

import pytest

from queryserver.errors.base import ConfigurationError
from queryserver.identity.build import open_directory_login
from queryserver.identity.model import UsernameRule
from queryserver.platform.settings.desktop import LdapSettings
from queryserver.platform.settings.loading import read_settings

GOOD = {"ldap_url": "ldaps://directory.test", "base_dn": "dc=test"}


def problems(ldap: LdapSettings) -> list[str]:
    with pytest.raises(ConfigurationError) as raised, open_directory_login(ldap, UsernameRule()):
        pass
    return raised.value.problems


def test_without_its_package_the_name_ldap_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ldap3", None)
    monkeypatch.delitem(sys.modules, "queryserver.identity.ldap.ldap3_directory", raising=False)
    [problem] = problems(LdapSettings.model_validate(GOOD))
    assert problem == "desktop.auth.backend: ldap needs the package ldap3; install queryserver[ldap]."


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_of_authorities_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    [problem] = problems(LdapSettings.model_validate({**GOOD, "ldap_cert": file}))
    assert problem.startswith(f"desktop.ldap.ldap_cert: {file}")


def test_a_good_configuration_sends_nothing_at_the_start() -> None:
    with open_directory_login(LdapSettings.model_validate(GOOD), UsernameRule()):
        pass


def test_servers_without_a_directory_do_without_its_package() -> None:
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
def test_settings_that_cannot_work_are_named(tmp_path: Path, ldap: str, key: str) -> None:
    file = tmp_path / "queryserver.toml"
    file.write_text(f"[desktop.auth]\nbackend = 'local,ldap'\n[desktop.ldap]\n{ldap}\n")
    assert [problem.partition(":")[0] for problem in read_settings(file, {}).problems] == [f"desktop.ldap.{key}"]


@pytest.mark.parametrize(
    "ldap", ["", "search_bind_authentication = false\nldap_username_pattern = 'uid=<username>,dc=test'\n",
             "search_bind_authentication = false\nnt_domain = 'corp.test'\n"]
)  # fmt: skip
def test_settings_that_can_work_are_taken(tmp_path: Path, ldap: str) -> None:
    file = tmp_path / "queryserver.toml"
    address = "ldap_url = 'ldap://d:3890'\nbase_dn = 'dc=test'\n"
    file.write_text(f"[desktop.auth]\nbackend = 'ldap'\n[desktop.ldap]\n{address}{ldap}")
    assert read_settings(file, {}).problems == []
