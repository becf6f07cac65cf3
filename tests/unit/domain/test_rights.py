"""What a group can be given (Contract platform 4.3)."""

import pytest
from tests.refusals import raises_code

from queryserver.identity.model import read_right
from queryserver.identity.users import DEFAULT_RIGHTS


@pytest.mark.parametrize(
    "right",
    [
        "admin",
        "connector:7",
        "connector:*",
        "connector:9223372036854775807",
        "security.impersonate",
        *DEFAULT_RIGHTS,
    ],
)
def test_rights_of_the_contract_are_known(right: str) -> None:
    assert read_right(right) == right


@pytest.mark.parametrize(
    "right",
    ["", "Admin", "admin ", "connector:", "connector:07", "connector:0", "connector:-1", "connector:٧", "connector:7\n",
     "connector:hive", "filebrowser.hdfs_access", "*"],
)  # fmt: skip
def test_every_other_word_is_refused(right: str) -> None:
    with raises_code("invalid_right"):
        read_right(right)
