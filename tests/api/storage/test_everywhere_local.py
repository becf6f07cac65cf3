"""The checklist on the local root."""

import pytest
from tests.api.storage.conftest import Files
from tests.api.storage.everywhere import EverywhereContract, World


class TestLocalRoot(EverywhereContract):
    @pytest.fixture
    async def world(self, files: Files) -> World:
        return World(await files.api.user("ana"), "file:///shared", trash=True, summary=True, modes=True)
