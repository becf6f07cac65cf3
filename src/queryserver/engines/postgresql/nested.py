"""Arrays, composite values and hstore to Arrow lists, structs and maps."""

from collections.abc import Sequence

import pyarrow as pa

from queryserver.engines.postgresql import literals
from queryserver.engines.postgresql.declared import DeclaredType, Kind
from queryserver.engines.postgresql.leaves import Unfit, read_text
from queryserver.engines.postgresql.literals import Nested

NESTED = frozenset({Kind.ARRAY, Kind.COMPOSITE, Kind.HSTORE})


def read_nested(declared: DeclaredType, texts: Sequence[str | None], *, dimensions: int = 1) -> pa.Array:
    """Values from the server's text form; an array has `dimensions`. Raises Unfit."""
    if declared.kind is Kind.ARRAY:
        arrays = [None if text is None else literals.array(text, declared.delimiter) for text in texts]
        return _lists(declared, arrays, dimensions)
    if declared.kind is Kind.COMPOSITE:
        return _structs(declared, [None if text is None else literals.attributes(text) for text in texts])
    if declared.kind is Kind.HSTORE:
        pairs = [None if text is None else literals.pairs(text) for text in texts]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))
    return read_text(declared, texts)


def dimensions_of(declared: DeclaredType, texts: Sequence[str | None]) -> int:
    """The most dimensions of the given arrays; the declared type does not tell them."""
    return max((_depth(literals.array(text, declared.delimiter)) for text in texts if text is not None), default=1)


def with_fields(declared: DeclaredType, texts: Sequence[str | None]) -> DeclaredType:
    """An anonymous record as composite type. It declares no fields: they are numbered, and text.

    Raises Unfit when no value tells how many there are.
    """
    first = next((text for text in texts if text is not None), None)
    if first is None:
        raise Unfit
    text_type = DeclaredType(Kind.TEXT, declared.result, "text")
    fields = tuple((f"field{i}", text_type) for i in range(len(literals.attributes(first))))
    return DeclaredType(Kind.COMPOSITE, declared.result, declared.name, fields=fields)


def _depth(value: Nested) -> int:
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = value[0] if value else None
    return depth


def _lists(declared: DeclaredType, arrays: Sequence[Nested], dimensions: int) -> pa.Array:
    items: list[Nested] = []
    offsets = [0]
    for array in arrays:
        if isinstance(array, list):
            items.extend(array)
        elif array is not None:
            raise Unfit
        offsets.append(len(items))
    inner = _lists(declared, items, dimensions - 1) if dimensions > 1 else _elements(declared, items)
    nulls = pa.array([array is None for array in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner, mask=nulls)


def _elements(declared: DeclaredType, items: Sequence[Nested]) -> pa.Array:
    texts = [item for item in items if not isinstance(item, list)]
    if len(texts) < len(items) or declared.element is None:
        raise Unfit
    return read_nested(declared.element, texts)


def _structs(declared: DeclaredType, values: Sequence[list[str | None] | None]) -> pa.Array:
    count = len(declared.fields)
    if any(value is not None and len(value) != count for value in values):
        raise Unfit
    children = [
        read_nested(field, [None if value is None else value[i] for value in values])
        for i, (_, field) in enumerate(declared.fields)
    ]
    fields = [pa.field(name, child.type) for (name, _), child in zip(declared.fields, children, strict=True)]
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
