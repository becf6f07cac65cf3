"""A search in every encoding of its fields (Contract platform 1.2, 8.1)."""

import json
from typing import Any

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, look, stock

FIELDS: dict[str, Any] = {
    "query_s": "sample*",
    "sources": ["sql"],
    "field_facets": ["type", "owner"],
    "limit": 3,
    "offset": 1,
}


@pytest.mark.platform(2)
async def test_a_search_finds_the_same_in_every_encoding(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await look(ana, web=["sample_07", "sample_08"], shop=["orders"])
    texts = {name: value if isinstance(value, str | int) else json.dumps(value) for name, value in FIELDS.items()}
    form = (await ana.post(CALL, **texts)).json()
    assert len(form["results"]) == 3
    assert form["facets"]["type"].keys() >= {"TABLE", "FIELD"}
    assert (await ana.post_json(CALL, **texts)).json() == form
    assert (await ana.post_json(CALL, **FIELDS)).json() == form
