"""Contexts, which Hue clients ask for first, and the optimizer, which nobody asks (Contract platform 7.3, 7.8)."""

from typing import Any

import pytest
from tests.api.driving import Api, Caller
from tests.cases import each

CLUSTER = {"id": "default", "name": "default", "type": "direct", "credentials": {}}
NAMESPACE = {"id": "default", "name": "default", "status": "CREATED", "computes": [CLUSTER]}


def compute(interface: str) -> dict[str, Any]:
    return {
        "id": "default", "name": "default", "namespace": "default", "interface": interface, "type": "direct",
        "options": {},
    }  # fmt: skip


@pytest.mark.platform(86)
@each("interface", ["hive", "7070", "never_heard-of", "Status", "statusx"])
@each("prefix", ["context", "/desktop/api2/context"])
async def test_contexts_answer_under_the_key_that_was_asked_for(ana: Caller, prefix: str, interface: str) -> None:
    for kind, expected in (("namespaces", NAMESPACE), ("computes", compute(interface)), ("clusters", CLUSTER)):
        found = (await ana.get(f"{prefix}/{kind}/{interface}")).json()
        assert found == {interface: [expected], "status": 0}
    assert (await ana.get(f"get_namespaces/{interface}")).json() == {interface: [NAMESPACE], "status": 0}


@pytest.mark.platform(86)
@each("path", ["context/namespaces", "/desktop/api2/context/namespaces", "get_namespaces"])
async def test_status_and_other_words_are_no_interface(ana: Caller, path: str) -> None:
    for word in ("status", "status/", "a.b", "a%20b", "%C3%A4", ""):
        assert (await ana.get(f"{path}/{word}")).status_code == 404, word


@pytest.mark.platform(86)
async def test_the_alias_of_hue_clients_needs_the_token(api: Api) -> None:
    for kind in ("namespaces", "computes", "clusters"):
        assert (await api.stranger.get(f"/desktop/api2/context/{kind}/hive")).status_code == 401
        assert (await api.stranger.get(f"context/{kind}/hive")).status_code == 401


@each("name", ["top_databases", "query_risk", "similar_queries", "predict"])
async def test_the_optimizer_is_not_served(ana: Caller, name: str) -> None:
    assert await ana.refused(f"optimizer/{name}") == (501, -1, "not_supported")
    assert (await ana.post("optimizer/unknown")).status_code == 404
    assert (await ana.get(f"optimizer/{name}")).status_code == 405
