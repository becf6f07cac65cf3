"""An Avro schema as the function that reads its values (specification 1.12, Schema Declaration)."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from queryserver.domain.errors import DecompressionFailed, InvalidJson
from queryserver.domain.json_text import parse_json
from queryserver.formats.unpacking.avro_cursor import Cursor
from queryserver.formats.unpacking.avro_values import LOGICAL, PRIMITIVES, Texts, decimal, fixed, text_of

_MAX_FIXED_BYTES = 16 * 1024 * 1024
_MAX_SCALE = 1000
# A short text takes some 50 bytes.
_ITEM_COST = 32


def reader_of(schema: str) -> Texts:
    """What reads a value of a schema, JSON text. Raises DecompressionFailed."""
    try:
        return _Compiler().reader(parse_json(schema), "")
    except (InvalidJson, KeyError, TypeError, ValueError, AttributeError):
        raise DecompressionFailed("The avro schema is broken.") from None
    except RecursionError:
        raise DecompressionFailed("The avro schema is nested too deeply.") from None


class _Compiler:
    """Knows the types that have names: a schema may use them again, also within themselves."""

    def __init__(self) -> None:
        self._named: dict[str, Texts] = {}

    def reader(self, schema: Any, namespace: str) -> Texts:
        if isinstance(schema, str):
            return PRIMITIVES.get(schema) or self._reference(schema, namespace)
        if isinstance(schema, list):
            return _union([self.reader(branch, namespace) for branch in cast("list[Any]", schema)])
        declared = cast("Mapping[str, Any]", schema)
        kind = declared["type"]
        if not isinstance(kind, str):
            return self.reader(kind, namespace)
        match kind:
            case "record" | "error":
                return self._record(declared, namespace)
            case "enum":
                return self._name(declared, namespace, _enum([str(symbol) for symbol in declared["symbols"]]))
            case "fixed":
                return self._name(declared, namespace, _fixed(declared))
            case "array":
                return _array(self.reader(declared["items"], namespace))
            case "map":
                return _map(self.reader(declared["values"], namespace))
            case "bytes" if (scale := _scale(declared)) is not None:
                return decimal(scale, None)
            case _:
                return LOGICAL.get((kind, str(declared.get("logicalType")))) or self.reader(kind, namespace)

    def _record(self, declared: Mapping[str, Any], namespace: str) -> Texts:
        parts: list[tuple[str, Texts]] = []

        cost = 0

        def read(cursor: Cursor) -> str:
            cursor.spend(cost)
            return "{" + "".join(f"{key}{texts(cursor)}" for key, texts in parts) + "}"

        self._name(declared, namespace, read)
        within = _full_name(declared, namespace).rpartition(".")[0]
        for field in declared["fields"]:
            key = f"{',' if parts else ''}{orjson.dumps(field['name']).decode()}:"
            cost += len(key) + _ITEM_COST
            parts.append((key, self.reader(field["type"], within)))
        return read

    def _name(self, declared: Mapping[str, Any], namespace: str, texts: Texts) -> Texts:
        self._named[_full_name(declared, namespace)] = texts
        return texts

    def _reference(self, name: str, namespace: str) -> Texts:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        return self._named[full] if full in self._named else self._named[name]


def _full_name(declared: Mapping[str, Any], namespace: str) -> str:
    name = str(declared["name"])
    if "." in name:
        return name
    space = str(declared.get("namespace", namespace))
    return f"{space}.{name}" if space else name


def _union(branches: Sequence[Texts]) -> Texts:
    def read(cursor: Cursor) -> str:
        chosen = cursor.whole()
        if not 0 <= chosen < len(branches):
            raise DecompressionFailed("The avro data choose a type that the union lacks.")
        return branches[chosen](cursor)

    return read


def _enum(symbols: Sequence[str]) -> Texts:
    texts = [orjson.dumps(symbol).decode() for symbol in symbols]

    def read(cursor: Cursor) -> str:
        chosen = cursor.whole()
        if not 0 <= chosen < len(texts):
            raise DecompressionFailed("The avro data choose a symbol that the enum lacks.")
        cursor.spend(len(texts[chosen]))
        return texts[chosen]

    return read


def _fixed(declared: Mapping[str, Any]) -> Texts:
    size = declared["size"]
    if type(size) is not int or not 0 <= size <= _MAX_FIXED_BYTES:
        raise ValueError(size)
    scale = _scale(declared)
    return fixed(size) if scale is None else decimal(scale, size)


def _scale(declared: Mapping[str, Any]) -> int | None:
    """The scale of a decimal; None: it is none."""
    scale = declared.get("scale", 0)
    is_decimal = declared.get("logicalType") == "decimal" and type(scale) is int and 0 <= scale <= _MAX_SCALE
    return scale if is_decimal else None


def _array(items: Texts) -> Texts:
    def read(cursor: Cursor) -> str:
        texts: list[str] = []
        while count := cursor.block_count():
            for _ in range(count):
                cursor.spend(_ITEM_COST)
                texts.append(items(cursor))
        return f"[{','.join(texts)}]"

    return read


def _map(values: Texts) -> Texts:
    def read(cursor: Cursor) -> str:
        texts: list[str] = []
        while count := cursor.block_count():
            for _ in range(count):
                cursor.spend(_ITEM_COST)
                key = orjson.dumps(text_of(cursor)).decode()
                texts.append(f"{key}:{values(cursor)}")
        return f"{{{','.join(texts)}}}"

    return read
