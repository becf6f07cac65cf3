"""User names and rights (Contract platform 3.7, 4.3)."""

import pytest
from tests.cases import each
from tests.refusals import raises_code

from queryserver.errors.base import InvalidUsername
from queryserver.identity.model import UsernameRule, read_right
from queryserver.identity.users import DEFAULT_RIGHTS


@pytest.mark.platform(36)
@each("name", "ANA", "ana", " ana ", "Ana\t")
def test_by_default_names_are_kept_and_compared_in_lower_case(name: str) -> None:
    read = UsernameRule().read(name)
    assert (read.shown, read.key) == ("ana", "ana")


@each(
    ("rule", "shown", "key"),
    (UsernameRule(force_lowercase=False), "Ana", "ana"),
    (UsernameRule(force_lowercase=False, force_uppercase=True), "ANA", "ana"),
    (UsernameRule(ignore_case=False, force_lowercase=False), "Ana", "Ana"),
)
def test_the_case_rule_is_configurable(rule: UsernameRule, shown: str, key: str) -> None:
    read = rule.read("Ana")
    assert (read.shown, read.key) == (shown, key)


def test_two_spellings_of_one_letter_are_one_name() -> None:
    assert UsernameRule().read("jose\u0301") == UsernameRule().read("jos\u00e9")


@each("name", "x", "a.b+c-d_e@f", "...a", "Ünïcøde", "x" * 150)
def test_legal_names_are_taken(name: str) -> None:
    assert UsernameRule().read(name).shown == name.lower()


@each("name", "", "  ", ".", "...", "a b", "a/b", "a\0b", "a\nb", "<b>", "a'b", "*", "x" * 151)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidUsername):
        UsernameRule().read(name)


@each("name", "ADMIN", "Admin", " admin", "admin ", "\uff41dmin", "e\u0301lodie", "a b", "")
def test_an_exact_name_is_written_as_it_is_stored(name: str) -> None:
    assert UsernameRule().read_exact("admin").shown == "admin"
    with pytest.raises(InvalidUsername):
        UsernameRule().read_exact(name)


def test_capitals_are_exact_where_names_are_stored_as_they_are_written() -> None:
    kept = UsernameRule(force_lowercase=False)
    assert (kept.read_exact("Ana").shown, kept.read_exact("Ana").key) == ("Ana", "ana")
    with pytest.raises(InvalidUsername):
        UsernameRule(force_lowercase=False, force_uppercase=True).read_exact("Ana")


@each(
    "right",
    "admin",
    "connector:7",
    "connector:*",
    "connector:9223372036854775807",
    "security.impersonate",
    *DEFAULT_RIGHTS,
)
def test_rights_of_the_contract_are_known(right: str) -> None:
    assert read_right(right) == right


@each("right", "", "Admin", "admin ", "connector:", "connector:07", "connector:0", "connector:-1", "connector:٧",
     "connector:7\n",
     "connector:hive", "filebrowser.hdfs_access", "*")  # fmt: skip
def test_every_other_word_is_refused(right: str) -> None:
    with raises_code("invalid_right"):
        read_right(right)
