"""Parsing the type names of all engines into trees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.timing import processor_s

from queryserver.sql.types import MAX_DEPTH, SqlType, parse_type

pytestmark = pytest.mark.item(60)


def shape(found: SqlType) -> object:
    """Return the tree in a readable form: name, [item], {key: value}, ((field, type), …)."""
    if found.item is not None:
        return [shape(found.item)]
    if found.key is not None and found.value is not None:
        return {shape(found.key): shape(found.value)}
    if found.fields:
        return tuple((field.name, shape(field.type)) for field in found.fields)
    return found.base


@pytest.mark.parametrize(("text", "base"),
    [("int", "int"), ("BIGINT", "bigint"), ("decimal(10,2)", "decimal"), ("DECIMAL(10, 2)", "decimal"),
    ("timestamp(3) with time zone", "timestamp"), ("timestamp without time zone", "timestamp"),
    ("double precision", "double"), ("character varying(20)", "varchar"), ("character(3)", "character"),
    ("interval day to second", "interval"), ("int(10) unsigned zerofill", "int"), ("enum('a,b','c)')", "enum"),
    ("set('it''s','[<(')", "set"), ("ENUM('x', 'y')", "enum"), ('"char"', "char"), ("public.pair", "pair"),
    ('public."My Pair"', "my pair"), ('"Odd Schema".pair', "pair"), ("geometry(Point,4326)", "geometry"),
    ("uniontype<int,array<string>>", "uniontype"), ("UNION(num INTEGER, str VARCHAR)", "union"),
    ("qdigest(bigint)", "qdigest"), ("UNSIGNED_INT", "unsigned_int"), ("", ""), ("   ", "")])  # fmt: skip
def test_scalar_has_its_first_word_and_no_parts(text: str, base: str) -> None:
    assert parse_type(text) == SqlType(base, text.strip())


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("array<struct<k:string,v:array<int>>>", [(("k", "string"), ("v", ["int"]))]),
        ("map<string,int>", {"string": "int"}),
        ("map<string, array<decimal(10,2)>>", {"string": ["decimal"]}),
        ("struct<a b:int,c-d:string>", (("a b", "int"), ("c-d", "string"))),
        ("struct<`a:b`:int,`c``d`:string>", (("a:b", "int"), ("c`d", "string"))),
        ("struct<a:int COMMENT 'x, y>',b:string>", (("a", "int"), ("b", "string"))),
        ("STRUCT<a INT, b: STRING>", (("a", "int"), ("b", "string"))),
        ('array(row(k varchar, "odd name" bigint))', [(("k", "varchar"), ("odd name", "bigint"))]),
        ("map(varchar, array(double))", {"varchar": ["double"]}),
        ("row(bigint, timestamp(3) with time zone)", (("field0", "bigint"), ("field1", "timestamp"))),
        ("row(timestamp with time zone, x time with time zone)", (("field0", "timestamp"), ("x", "time"))),
        ("row(row row(a int), array array(int))", (("row", (("a", "int"),)), ("array", ["int"]))),
        ('row("a""b" int)', (('a"b', "int"),)),
        ('STRUCT(k VARCHAR, "a b" INTEGER[])[]', [(("k", "varchar"), ("a b", ["integer"]))]),
        ("MAP(VARCHAR, INTEGER)", {"varchar": "integer"}),
        ("MAP(VARCHAR, INTEGER[])[]", [{"varchar": ["integer"]}]),
        ("STRUCT(INTEGER, VARCHAR[])", (("field0", "integer"), ("field1", ["varchar"]))),
        ("STRUCT(e ENUM('a)', 'b'), u UNION(n INTEGER, s VARCHAR))", (("e", "enum"), ("u", "union"))),
        ("INTEGER[3]", ["integer"]),
        ("INTEGER[3][]", [["integer"]]),
        ("integer[]", ["integer"]),
        ("character varying(20)[]", ["varchar"]),
        ("timestamp(3) without time zone[]", ["timestamp"]),
        ('public."My Pair"[]', ["my pair"]),
        ("INTEGER ARRAY", ["integer"]),
        ("VARCHAR(10) ARRAY[3]", ["varchar"]),
        ("  array < int >  ", ["int"]),
    ],
)
def test_nested_types_become_trees(text: str, tree: object) -> None:
    assert shape(parse_type(text)) == tree


def test_each_part_keeps_the_engines_text() -> None:
    found = parse_type("array<struct<k:string, v:array<decimal(10,2)>>>")
    assert (found.base, found.text) == ("array", "array<struct<k:string, v:array<decimal(10,2)>>>")
    assert found.item is not None
    assert (found.item.base, found.item.text) == ("struct", "struct<k:string, v:array<decimal(10,2)>>")
    assert [field.type.text for field in found.item.fields] == ["string", "array<decimal(10,2)>"]
    assert [part.text for part in _items("character varying(20)[3][]")] == [
        "character varying(20)[3][]",
        "character varying(20)[3]",
        "character varying(20)",
    ]
    assert parse_type("row(x bigint)").base == "row"
    assert parse_type("STRUCT(x BIGINT)").base == "struct"


def _items(text: str) -> list[SqlType]:
    found, parts = parse_type(text), list[SqlType]()
    while found is not None:
        parts.append(found)
        found = found.item
    return parts


def test_nested_types_are_found_by_path() -> None:
    found = parse_type('array(row(Key varchar, "item" map(varchar, bigint), a int, A int))')
    assert found.at(()) is found
    assert found.at(("item", "key")) == SqlType("varchar", "varchar")
    assert found.at(("item", "item", "value")) == SqlType("bigint", "bigint")
    assert found.at(("item", "A")) == SqlType("int", "int")
    for path in (("key",), ("item", "none"), ("item", "key", "item"), ("item", "item", "item"), ("item", ""), ("0",)):
        assert found.at(path) is None


@pytest.mark.parametrize(
    "text",
        ["array<", "array<int", "array<int>>", "map<int>", "map<int,int,int>", "struct<a:>", "struct<:>", "struct(a",
        "int)", "array<int)", "row(a int,)", "array()", "array<>", "x[", "x]", "enum('a", 'row("a int)',
        "array<int> x y (",
        "array,", "x[(])", "map<,>"],
)  # fmt: skip
def test_unparsable_type_is_a_scalar_of_its_first_word(text: str) -> None:
    found = parse_type(text)
    assert found.text == text
    assert shape(found) == found.base
    assert text.startswith(found.base)


@pytest.mark.parametrize("deep",
    [lambda n: "array<" * n + "int" + ">" * n, lambda n: "int" + "[]" * n, lambda n: "row(a " * n + "int" + ")" * n,
    lambda n: "int" + " ARRAY" * n])  # fmt: skip
def test_depth_is_bounded(deep) -> None:
    assert parse_type(deep(MAX_DEPTH)).text == deep(MAX_DEPTH)
    assert shape(parse_type(deep(MAX_DEPTH))) != parse_type(deep(MAX_DEPTH)).base
    for levels in (MAX_DEPTH + 1, 20_000):
        found = parse_type(deep(levels))
        assert shape(found) == found.base in {"array", "int", "row"}


@pytest.mark.parametrize(
    "piece", ["a:int,", "array<", "[]", "(", "'", '"', "`", "''", "x ", "row(", ",", "a b:int,", "<(", "struct<"]
)
@pytest.mark.slow
def test_parsing_time_is_linear_in_the_length(piece: str) -> None:
    def seconds(count: int) -> float:
        text = "struct<" + piece * count
        return processor_s(lambda: parse_type(text))

    few, many = min(seconds(2_000) for _ in range(3)), min(seconds(20_000) for _ in range(2))
    assert many < 40 * few + 0.1, "ten times the text takes about ten times as long"


_WORDS = st.sampled_from(["int", "VARCHAR(20)", "decimal(10,2)", "double", "timestamp", "enum('a,b','c)')"])


def _hive(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    named = st.lists(parts, min_size=1, max_size=3).map(
        lambda types: "struct<" + ",".join(f"f{n}:{kind}" for n, kind in enumerate(types)) + ">"
    )
    rows = st.lists(parts, min_size=1, max_size=3).map(
        lambda types: "row(" + ", ".join(f'"f {n}" {kind}' for n, kind in enumerate(types)) + ")"
    )
    pairs = st.tuples(parts, parts).map(lambda pair: f"map({pair[0]}, {pair[1]})")
    return named | rows | pairs | parts.map(lambda kind: f"array<{kind}>") | parts.map(lambda kind: f"{kind}[]")


@given(st.recursive(_WORDS, _hive, max_leaves=12))
def test_every_part_equals_the_tree_of_its_text(text: str) -> None:
    def check(found: SqlType) -> None:
        assert parse_type(found.text) == found
        for part in (found.item, found.key, found.value, *(field.type for field in found.fields)):
            if part is not None:
                check(part)

    found = parse_type(text)
    assert found.text == text
    check(found)


@given(st.text(alphabet="ab<>()[],:'\"` int.ARRAYrowstructmap", max_size=60))
def test_any_text_is_parsed(text: str) -> None:
    assert parse_type(text).text == text.strip()
