"""Who is named in calls."""

import pytest
from tests.cases import each

from queryserver.errors.base import PermissionDenied
from queryserver.files.stores.webhdfs.gateway import NamedIdentity, TokenIdentity, acting_name


@each("name", "", "alice/host", "alice@REALM", "alice/host@REALM", "a\nb")
def test_names_that_hadoop_would_shorten_to_another_user_s_have_no_access(name):
    with pytest.raises(PermissionDenied):
        acting_name(name)


async def test_service_and_caller_are_both_named():
    assert await NamedIdentity("svc").parameters("ana") == {"user.name": "svc", "doas": "ana"}


class Store:
    def __init__(self) -> None:
        self.now = 0.0
        self.obtained: list[str] = []
        self.renewed: list[str] = []

    async def obtain(self, user: str) -> str:
        self.obtained.append(user)
        return f"{user}{len(self.obtained)}"

    async def renew(self, token: str) -> None:
        self.renewed.append(token)

    def identity(self) -> TokenIdentity:
        return TokenIdentity(self.obtain, self.renew, lambda: self.now)


async def test_each_caller_has_a_token_of_his_own_which_is_kept_renewed_and_replaced():
    store = Store()
    identity = store.identity()
    for _ in range(2):
        assert await identity.parameters("ana") == {"delegation": "ana1"}
        assert await identity.parameters("bo") == {"delegation": "bo2"}
    store.now = 10 * 3600
    assert await identity.parameters("ana") == {"delegation": "ana1"}
    assert store.renewed == ["ana1"]
    store.now = 6 * 24 * 3600
    assert await identity.parameters("ana") == {"delegation": "ana3"}
    assert store.obtained == ["ana", "bo", "ana"]


async def test_a_refused_token_is_replaced_once():
    identity = Store().identity()
    await identity.parameters("ana")
    assert identity.refused("ana")
    assert not identity.refused("ana")
    assert await identity.parameters("ana") == {"delegation": "ana2"}
