"""Names of entries, and which ones new entries may have (Contract storage 2.2, 2.3, 2.4)."""

import pytest
from tests.cases import each
from tests.refusals import raises_code

from queryserver.errors.files import InvalidName, InvalidPath
from queryserver.files.model import ExtensionRules, extension_of, hides_dots, is_name, names_of, new_name


@each(("path", "names"), ("", ()), ("a", ("a",)), ("a/b c/é", ("a", "b c", "é")), ("a\\b/%2e", ("a\\b", "%2e")))
def test_a_path_is_taken_apart_as_it_is(path: str, names: tuple[str, ...]) -> None:
    assert names_of(path) == names


@pytest.mark.security("T1")
@each(
    "path", "/a", "a/", "a//b", "a/./b", "a/../b", "..", ".", "a\0", "a/._qs_x", "x" * 256, "/".join(["x" * 200] * 21)
)
def test_a_path_that_was_not_checked_gets_no_further(path: str) -> None:
    with pytest.raises(InvalidPath):
        names_of(path)


@each("name", "", ".", "..", "a/b", "a\0b", "._qs_", "._qs_x", "é" * 128, "\ud800")
def test_what_can_be_no_name_is_none(name: str) -> None:
    assert not is_name(name)


@each("name", "...", "._qs", "a._qs_", "\\", "\n", "#", " ", "x" * 255, "é" * 127)
def test_strange_names_can_be_asked_for(name: str) -> None:
    assert is_name(name)


@each(("name", "hidden"), ("%2e", True), ("%2E%2e", True), (".%2e", True), ("%252e%252e", True), ("%25252e", True),
     ("%2525252e", False),
     ("%2e%2e%2e", False), ("a%2e", False), ("%", False), ("%2", False))  # fmt: skip
def test_dots_hide_behind_up_to_three_encodings(name: str, hidden: bool) -> None:
    assert hides_dots(name) is hidden


@pytest.mark.storage(56)
@each(
    "name",
    "",
    " ",
    ".",
    " .. ",
    "a/b",
    "a\\b",
    "..\\x",
    "a\nb",
    "a\r\n",
    "\na",
    "a\tb",
    "\x7f",
    "a\0",
    "._qs_x",
    "x" * 256,
    "%2e%2e",
)
@each("is_directory", False, True)
def test_names_that_new_entries_cannot_have(name: str, is_directory: bool) -> None:
    with pytest.raises(InvalidName):
        new_name(name, is_directory=is_directory)


@pytest.mark.storage(56)
def test_a_number_sign_is_for_files_only() -> None:
    assert new_name("a#b") == "a#b"
    with pytest.raises(InvalidName):
        new_name("a#b", is_directory=True)


@each("name", "a b", "x&(y)@%'\"", "日本", "...", ".env", "a..b", "x" * 255)
def test_new_entries_may_have_all_other_names(name: str) -> None:
    assert new_name(f"  {name}\u00a0", is_directory=True) == name


@pytest.mark.storage(58)
@each(
    ("name", "extension"),
    ("a.TXT", ".txt"),
    ("archive.tar.gz", ".gz"),
    ("a", ""),
    (".env", ""),
    (".env.x", ".x"),
    ("a.", "."),
    ("", ""),
)
def test_the_extension_begins_at_the_last_dot(name: str, extension: str) -> None:
    assert extension_of(name) == extension


@pytest.mark.storage(58)
class TestExtensionRules:
    def test_without_rules_all_is_permitted(self) -> None:
        for name in ("a", "a.exe", ".env"):
            ExtensionRules().check(name)

    def test_dots_blanks_and_case_of_settings_do_not_matter(self) -> None:
        rules = ExtensionRules(allowed=(" CSV ", ".txt"), restricted=(".Exe",))
        rules.check("a.csv")
        rules.check("a.TXT")
        with raises_code("extension_not_permitted") as refused:
            rules.check("a.exe")
        assert refused.value.message == (
            'File type ".exe" is not permitted. Modify file extension settings to allow this type.'
        )

    def test_restricted_ones_are_named(self) -> None:
        rules = ExtensionRules(restricted=("exe",))
        rules.check("exe")
        rules.check("a.exe.txt")
        with raises_code("extension_restricted") as refused:
            rules.check("a.EXE")
        assert refused.value.message == (
            'File type ".exe" is restricted. Update file extension restrictions to allow this type.'
        )

    def test_the_list_of_permitted_ones_comes_first(self) -> None:
        rules = ExtensionRules(allowed=("csv", "exe"), restricted=("exe",))
        with raises_code("extension_not_permitted"):
            rules.check("a.bat")
        with raises_code("extension_restricted"):
            rules.check("a.exe")

    def test_no_extension_fails_permission_and_passes_restriction(self) -> None:
        with raises_code("extension_not_permitted"):
            ExtensionRules(allowed=("csv",)).check(".env")
        ExtensionRules(restricted=("env",)).check(".env")

    def test_an_entry_keeps_the_extension_that_it_has(self) -> None:
        rules = ExtensionRules(restricted=("txt",))
        rules.check("b.txt", former="a.TXT")
        with raises_code("extension_restricted"):
            rules.check("b.txt", former="a.csv")
