"""What is kept of an answer is what comes back."""

from types import MappingProxyType

import pytest
from tests.fakes.catalog import FakeCatalog, FakeCatalogEngine, table
from tests.refusals import raises_code

from queryserver.catalog import questions
from queryserver.catalog.questions import BY_KIND, CatalogQuestion
from queryserver.engines.protocol import ForeignKey, TableProperty

ALL = [
    questions.databases(), questions.database("shop"), questions.tables("shop"), questions.table("shop", "rich"),
    questions.column("shop", "rich", "ID"), questions.functions(None), questions.functions("shop"),
    questions.function("abs"), questions.function("nope"),
]  # fmt: skip


@pytest.fixture
def catalog() -> FakeCatalog:
    """A catalogue with a table that has everything."""
    engine = FakeCatalogEngine()
    engine.content["shop"]["rich"] = table(
        "shop",
        "rich",
        foreign_keys=(ForeignKey("id", "shop.people.id"),),
        properties=(TableProperty("EXTERNAL", "TRUE"),),
        statistics=MappingProxyType({"numRows": "12"}),
        support_updates=True,
    )
    return FakeCatalog(engine)


@pytest.mark.parametrize("question", ALL, ids=lambda one: f"{one.kind}{one.names}")
async def test_an_answer_survives_being_kept(catalog: FakeCatalog, question: CatalogQuestion[object]):
    answer = await question.put_to(catalog)
    assert question.decode(question.encode(answer)) == answer


@pytest.mark.parametrize("question", ALL, ids=lambda one: f"{one.kind}{one.names}")
async def test_another_process_can_build_the_question(catalog: FakeCatalog, question: CatalogQuestion[object]):
    rebuilt = BY_KIND[question.kind](*question.names)
    assert (rebuilt.kind, rebuilt.names) == (question.kind, question.names)
    assert await rebuilt.put_to(catalog) == await question.put_to(catalog)


async def test_parts_of_a_table_that_are_not_there_are_named(catalog: FakeCatalog):
    described = await catalog.table("shop", "rich")
    with raises_code("column_not_found"):
        questions.column_of(described, "nope")
    with raises_code("nested_path_not_found", match=r"^Invalid nested type path: item/x$"):
        questions.nested_type(questions.column_of(described, "tags"), ("item", "x"))
