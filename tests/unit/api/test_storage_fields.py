"""Fields that come from two places, or under two names (Contract storage 2.1)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from tests.cases import each
from tests.refusals import raises_code

from queryserver.api.schemas.fields import Flag, Text
from queryserver.api.schemas.requests.storage import Given, StorageFields, parse_given


class Moved(StorageFields):
    """Fields as a call has them."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"dest_path": ("dest_path", "destination_path", "dest")}

    dest_path: Text | None = None
    overwrite: Flag = False


def read(query: Mapping[str, Sequence[Any]], body: Mapping[str, Sequence[Any]]) -> Moved:
    return parse_given(Moved, Given(query, body), max_json_depth=10)


@pytest.mark.storage(7)
@each(("text", "native"), ("true", True), ("false", False), ("yes", "yes"))
def test_the_same_in_query_and_body_is_no_conflict(text: str, native: object) -> None:
    assert read({"overwrite": [text]}, {"overwrite": [native]}).overwrite is (text != "false")


@pytest.mark.storage(7)
@each("native", False, "false", "", "1")
def test_something_else_in_the_body_is_a_conflict(native: object) -> None:
    with raises_code("conflicting_parameters"):
        read({"overwrite": ["true"]}, {"overwrite": [native]})


@pytest.mark.storage(7)
def test_names_of_one_field_must_say_the_same() -> None:
    assert read({}, {"dest": ["/a"], "destination_path": ["/a"]}).dest_path == "/a"
    with raises_code("conflicting_parameters"):
        read({"destination_path": ["/a"]}, {"dest_path": ["/b"]})


def test_of_a_name_that_is_repeated_the_last_counts() -> None:
    assert read({}, {"dest": ["/a", "/b", None]}).dest_path == "/b"
