"""The names and paths of stored files (Contract storage 2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import raises_code

from queryserver.errors.base import MissingParameter, QueryServerError
from queryserver.errors.files import InvalidName, InvalidPath, StorageNotConfigured, UnknownAuthority, UnknownScheme
from queryserver.files.model import (
    ExtensionRules,
    PathReader,
    Scheme,
    StoragePath,
    checked_new_name,
    decoded_path,
    decodes_to_dots,
    extension_of,
    is_name,
    names_of,
    repaired_path,
)

ALL = PathReader(
    configured=tuple(Scheme),
    name_nodes=frozenset({"nn1:8020", "nn1"}),
    azure_account="acc.dfs.core.windows.net",
    ozone_services=("om1", "om2"),
)

SPELLINGS = {
    "/user/x": "/user/x /user/x/ //user///x /user/./x user/x hdfs:///user/x hdfs:/user/x HDFS:///user/x"
    " hdfs://nn1/user/x hdfs://nn1:8020/user/x hdfs://NN1:8020/user/x hdfs:/nn1:8020/user/x hdfs:////user/x",
    "/": "/ // hdfs:/// hdfs:// hdfs:/ hdfs://nn1 /./",
    "s3a://b/k": "s3a://b/k s3://b/k s3n://b/k s3a:/b/k S3A://b/k s3a://b//k/ s3a:///b/k s3a://b/./k",
    "s3a://": "s3a:// s3a:/ s3:/// s3n://",
    "abfs://c/x": "abfs://c/x abfss://c/x adls://c/x adl://c/x abfs:/c/x abfs://c@acc.dfs.core.windows.net/x"
    " abfss://c@ACC.dfs.core.windows.net/x",
    "abfs://c": "abfs://c abfs://c/ abfs://c@acc.dfs.core.windows.net",
    "ofs://om1/v/b/k": "ofs://om1/v/b/k ofs:/om1/v/b/k ofs:///v/b/k OFS://om1/v//b/k/",
    "ofs://om2/v": "ofs://om2/v",
    "ofs://": "ofs:// ofs:///",
    "file:///docs/a.csv": "file:///docs/a.csv file:/docs/a.csv file:////docs/a.csv FILE:///docs//a.csv",
    "file:///": "file:/// file:// file:/",
}


@pytest.mark.storage(12)
@pytest.mark.storage(13)
@pytest.mark.storage(14)
@pytest.mark.parametrize(
    ("spelling", "normal"), [(one, normal) for normal, all_ in SPELLINGS.items() for one in all_.split()]
)
def test_spellings_of_a_path_share_one_normal_form(spelling: str, normal: str) -> None:
    path = ALL.read(spelling)
    assert str(path) == normal
    assert ALL.read(str(path)) == path


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", MissingParameter),
        pytest.param("gs://b", UnknownScheme, marks=pytest.mark.storage(15)),
        ("http://host/x", UnknownScheme),
        ("javascript:/x", UnknownScheme),
        pytest.param("hdfs://other/user/x", UnknownAuthority, marks=pytest.mark.storage(14)),
        ("hdfs://nn1:9000/x", UnknownAuthority),
        pytest.param("file://host/x", UnknownAuthority, marks=pytest.mark.security("S4")),
        ("abfs://c@other.dfs.core.windows.net/x", UnknownAuthority),
        ("ofs://om3/v", UnknownAuthority),
        ("/.reserved/raw/x", InvalidPath),
        ("hdfs:///.reserved", InvalidPath),
    ],
)
def test_unknown_schemes_and_authorities_are_rejected(text: str, error: type[QueryServerError]) -> None:
    with pytest.raises(error):
        ALL.read(text)


@pytest.mark.parametrize("text",
    ["s3a://b/k", "s3:/b", "abfs://c", "abfs://c@other.example/x", "ofs:///v", "ofs://other/v", "file:///x",
    "file://host/x"])  # fmt: skip
def test_unconfigured_schemes_are_rejected(text: str) -> None:
    with pytest.raises(StorageNotConfigured):
        PathReader(configured=(Scheme.HDFS,)).read(text)


def test_path_without_scheme_uses_the_first_store() -> None:
    assert str(PathReader(configured=(Scheme.S3A, Scheme.FILE)).read("/b/k")) == "s3a://b/k"
    assert str(PathReader(configured=(Scheme.FILE,)).read("a b/c")) == "file:///a b/c"
    with pytest.raises(StorageNotConfigured):
        PathReader(configured=()).read("/a")


@pytest.mark.storage(16)
@pytest.mark.security("S1")
@pytest.mark.security("T1")
@pytest.mark.parametrize("dots", ["..", "%2e%2e", "%2E%2e", ".%2e", "%252e%252e", "%25252e%25252e", "%2e", "%252E"])
@pytest.mark.parametrize(
    "path",
    ["/a/{}/b", "/{}", "{}", "/a/{}", "s3a://{}", "s3a://b/{}/k", "file:///{}/x", "hdfs://nn1/{}", "ofs:///v/{}"],
)
def test_relative_segments_are_rejected_in_any_encoding(path: str, dots: str) -> None:
    with pytest.raises((InvalidPath, UnknownAuthority)):
        ALL.read(path.format(dots))


@pytest.mark.storage(16)
@pytest.mark.parametrize("name",
    ["a..b.txt", "...", "..a", "a..", "．．", "‥", "。。", "∕", "%", "%2", "%zz", "a%2e%2e", "\\", "..\\..",
    "a\\b"])  # fmt: skip
def test_names_resembling_dots_are_accepted(name: str) -> None:
    assert ALL.read(f"/x/{name}/y").names == ("x", name, "y")


@pytest.mark.storage(18)
@pytest.mark.security("S2")
@pytest.mark.parametrize("path", ["/a\0b", "/\0", "s3a://b/\0", "/a/\ud800"])
def test_nul_and_lone_surrogates_are_rejected(path: str) -> None:
    with pytest.raises(InvalidPath):
        ALL.read(path)


@pytest.mark.storage(18)
@pytest.mark.parametrize(
    ("longest", "too_long"),
    [
        ("/" + "x" * 255, "/" + "x" * 256),
        ("/" + "é" * 127, "/" + "é" * 128),
        ("/".join(["x" * 240] * 17), "/".join(["x" * 240] * 18)),
        ("s3a://b/" + "/".join(["x" * 204] * 5), "s3a://b/" + "/".join(["x" * 205] * 5)),
    ],
)
def test_names_paths_and_keys_have_a_maximum_length(longest: str, too_long: str) -> None:
    assert ALL.read(longest)
    with pytest.raises(InvalidPath):
        ALL.read(too_long)


@pytest.mark.storage(35)
@pytest.mark.parametrize("path", ["/a/._qs_upload_1", "/._qs_", "s3a://b/._qs_x/y"])
def test_reserved_names_are_rejected(path: str) -> None:
    with pytest.raises(InvalidPath):
        ALL.read(path)


@pytest.mark.security("S3")
def test_backslash_is_not_a_separator() -> None:
    assert ALL.read("/a\\..\\b") == StoragePath(Scheme.HDFS, "a\\..\\b")


@pytest.mark.security("S4")
def test_paths_cannot_leave_the_local_root() -> None:
    assert ALL.read("file:////etc") == StoragePath(Scheme.FILE, "etc")
    with pytest.raises(InvalidPath):
        ALL.read("file:///../x")


@pytest.mark.storage(11)
@pytest.mark.storage(12)
@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/a", "/a"),
        ("%2Fa", "/a"),
        ("%252Fa", "/a"),
        ("%2Fsome%2Fa%20b", "/some/a b"),
        ("%252Fsome%252Fa%2520b", "/some/a%20b"),
        ("s3a:%2Fsome%2Fpath", "s3a:/some/path"),
        ("s3a%3A%2F%2Fb%2Fk", "s3a://b/k"),
        ("s3a:%252F%252Fb%252Fk%2520x", "s3a://b/k%20x"),
        ("/a%252Fb", "/a%2Fb"),
        ("/a+b", "/a+b"),
        ("/%C3%A9", "/é"),
        ("a%3Fb%23c", "a?b#c"),
    ],
)
def test_path_in_the_url_is_decoded_once_and_repaired(raw: str, path: str) -> None:
    assert decoded_path(raw) == path


@pytest.mark.parametrize("raw", ["/%ff", "%C3", "/a/%ED%A0%80"])
def test_undecodable_bytes_are_rejected(raw: str) -> None:
    with pytest.raises(InvalidPath):
        decoded_path(raw)


@pytest.mark.parametrize(("given_path", "path"),
    [("%2Fsome%2Fa%20b", "/some/a%20b"), ("s3a:%2Fsome%2Fpath", "s3a:/some/path"), ("%2fx", "/x"), ("/a%2Fb", "/a%2Fb"),
    ("a%2Fb", "a%2Fb")])  # fmt: skip
def test_doubly_encoded_path_is_repaired(given_path: str, path: str) -> None:
    assert repaired_path(given_path) == path


@given(st.text(alphabet="/.%2eE5:\\a\0é", max_size=24))
def test_parsed_path_round_trips_without_hidden_segments(text: str) -> None:
    try:
        path = ALL.read(text)
    except QueryServerError:
        return
    assert ALL.read(str(path)) == path
    assert names_of(path.path) == path.names
    assert not any(map(decodes_to_dots, path.names))
    assert not {"", ".", ".."} & {*path.names}


class TestStoragePath:
    def test_child_and_parent_navigate_the_path(self) -> None:
        path = StoragePath(Scheme.S3A, "b/c")
        assert (path.name, path.names, path.parent.path, path.parent.parent.path) == ("c", ("b", "c"), "b", "")
        assert path.parent.parent.is_root
        assert path.parent.parent.parent.is_root
        assert str(StoragePath(Scheme.FILE, "").child("x").child("y")) == "file:///x/y"

    @pytest.mark.parametrize(("inner", "outer", "is_inside"),
        [("a/b", "a", True), ("a/b/c", "a", True), ("a", "", True), ("a", "a", False), ("", "", False),
        ("ab", "a", False), ("a/bc", "a/b", False), ("a", "a/b", False)])  # fmt: skip
    def test_path_inside_another_is_determined_by_whole_names(self, inner: str, outer: str, is_inside: bool) -> None:
        assert StoragePath(Scheme.HDFS, inner).is_inside(StoragePath(Scheme.HDFS, outer)) is is_inside
        assert not StoragePath(Scheme.HDFS, inner).is_inside(StoragePath(Scheme.S3A, outer))


@pytest.mark.parametrize(
    ("path", "names"), [("", ()), ("a", ("a",)), ("a/b c/é", ("a", "b c", "é")), ("a\\b/%2e", ("a\\b", "%2e"))]
)
def test_path_is_split_unchanged(path: str, names: tuple[str, ...]) -> None:
    assert names_of(path) == names


@pytest.mark.security("T1")
@pytest.mark.parametrize(
    "path", ["/a", "a/", "a//b", "a/./b", "a/../b", "..", ".", "a\0", "a/._qs_x", "x" * 256, "/".join(["x" * 200] * 21)]
)
def test_unchecked_path_is_rejected(path: str) -> None:
    with pytest.raises(InvalidPath):
        names_of(path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "._qs_", "._qs_x", "é" * 128, "\ud800"])
def test_invalid_name_is_rejected(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("name", ["...", "._qs", "a._qs_", "\\", "\n", "#", " ", "x" * 255, "é" * 127])
def test_unusual_names_are_valid(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(("name", "hidden"), [
    ("%2e", True), ("%2E%2e", True), (".%2e", True), ("%252e%252e", True), ("%25252e", True),
     ("%2525252e", False),
     ("%2e%2e%2e", False), ("a%2e", False), ("%", False), ("%2", False)])  # fmt: skip
def test_encoded_dots_are_detected_through_three_encodings(name: str, hidden: bool) -> None:
    assert decodes_to_dots(name) is hidden


@pytest.mark.storage(56)
@pytest.mark.parametrize("name",
    ["", " ", ".", " .. ", "a/b", "a\\b", "..\\x", "a\nb", "a\r\n", "\na", "a\tb", "\x7f", "a\0", "._qs_x", "x" * 256,
    "%2e%2e"])  # fmt: skip
@pytest.mark.parametrize("is_directory", [False, True])
def test_invalid_names_of_new_entries_are_rejected(name: str, is_directory: bool) -> None:
    with pytest.raises(InvalidName):
        checked_new_name(name, is_directory=is_directory)


@pytest.mark.storage(56)
def test_number_sign_is_allowed_in_files_only() -> None:
    assert checked_new_name("a#b") == "a#b"
    with pytest.raises(InvalidName):
        checked_new_name("a#b", is_directory=True)


@pytest.mark.parametrize("name", ["a b", "x&(y)@%'\"", "日本", "...", ".env", "a..b", "x" * 255])
def test_other_names_of_new_entries_are_accepted(name: str) -> None:
    assert checked_new_name(f"  {name}\u00a0", is_directory=True) == name


@pytest.mark.storage(58)
@pytest.mark.parametrize(("name", "extension"),
    [("a.TXT", ".txt"), ("archive.tar.gz", ".gz"), ("a", ""), (".env", ""), (".env.x", ".x"), ("a.", "."),
    ("", "")])  # fmt: skip
def test_extension_starts_at_the_last_dot(name: str, extension: str) -> None:
    assert extension_of(name) == extension


@pytest.mark.storage(58)
class TestExtensionRules:
    def test_no_rules_permit_everything(self) -> None:
        for name in ("a", "a.exe", ".env"):
            ExtensionRules().check(name)

    def test_rules_ignore_dots_blanks_and_case(self) -> None:
        rules = ExtensionRules(allowed=(" CSV ", ".txt"), restricted=(".Exe",))
        rules.check("a.csv")
        rules.check("a.TXT")
        with raises_code("extension_not_permitted") as refused:
            rules.check("a.exe")
        assert refused.value.message == (
            'File type ".exe" is not permitted. Modify file extension settings to allow this type.'
        )

    def test_restricted_extension_is_named(self) -> None:
        rules = ExtensionRules(restricted=("exe",))
        rules.check("exe")
        rules.check("a.exe.txt")
        with raises_code("extension_restricted") as refused:
            rules.check("a.EXE")
        assert refused.value.message == (
            'File type ".exe" is restricted. Update file extension restrictions to allow this type.'
        )

    def test_allowed_list_is_checked_first(self) -> None:
        rules = ExtensionRules(allowed=("csv", "exe"), restricted=("exe",))
        with raises_code("extension_not_permitted"):
            rules.check("a.bat")
        with raises_code("extension_restricted"):
            rules.check("a.exe")

    def test_missing_extension_fails_the_allowed_list_and_passes_the_restricted_list(self) -> None:
        with raises_code("extension_not_permitted"):
            ExtensionRules(allowed=("csv",)).check(".env")
        ExtensionRules(restricted=("env",)).check(".env")

    def test_entry_may_keep_its_extension(self) -> None:
        rules = ExtensionRules(restricted=("txt",))
        rules.check("b.txt", former="a.TXT")
        with raises_code("extension_restricted"):
            rules.check("b.txt", former="a.csv")
