"""Thrift structs as dataclasses that Apache thrift's C extension reads and writes without further code."""

from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from thrift.protocol.TBase import TBase
from thrift.Thrift import TType


@dataclass(frozen=True, slots=True)
class Kind:
    """A thrift type; `arguments` is what `thrift_spec` says about what is inside it."""

    number: int
    arguments: Any = None


BOOL = Kind(TType.BOOL)
BYTE = Kind(TType.BYTE)
I16 = Kind(TType.I16)
I32 = Kind(TType.I32)
I64 = Kind(TType.I64)
DOUBLE = Kind(TType.DOUBLE)
TEXT = Kind(TType.STRING, "UTF8")
BYTES = Kind(TType.STRING, "BINARY")


def list_of(kind: Kind) -> Kind:
    """`list<kind>`."""
    return Kind(TType.LIST, (kind.number, kind.arguments, False))


def map_of(key: Kind, value: Kind) -> Kind:
    """`map<key, value>`."""
    return Kind(TType.MAP, (key.number, key.arguments, value.number, value.arguments, False))


def struct_of(one: type["Struct"]) -> Kind:
    """A struct within a struct."""
    return Kind(TType.STRUCT, [one, one.thrift_spec])


class Struct(TBase):
    """A thrift struct or union. Fields that are not set are None."""

    __slots__ = ()
    thrift_spec: ClassVar[tuple[tuple[Any, ...] | None, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()
    """Fields without which a decoded struct is worth nothing."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Fields that hold structs or lists of structs."""


def wire(number: int, kind: Kind, *, default: Any = ...) -> Any:
    """A field: its number and type on the wire; required where no default is given."""
    return field(default=None, metadata={"number": number, "kind": kind, "required": default is ...})


StructT = TypeVar("StructT", bound=Struct)


@dataclass_transform(field_specifiers=(wire,), kw_only_default=True)
def struct(one: type[StructT]) -> type[StructT]:
    """Make a dataclass of `one` and give it its `thrift_spec`."""
    made = dataclass(kw_only=True, slots=True)(one)
    declared: dict[int, Field[Any]] = {each.metadata["number"]: each for each in fields(cast("Any", made))}
    made.thrift_spec = tuple(
        _spec(number, declared[number].name, declared[number].metadata["kind"]) if number in declared else None
        for number in range(max(declared, default=-1) + 1)
    )
    made.required = tuple(each.name for each in declared.values() if each.metadata["required"])
    made.inner = tuple(each.name for each in declared.values() if _holds_structs(each.metadata["kind"]))
    return made


def _spec(number: int, name: str, kind: Kind) -> tuple[Any, ...]:
    return number, kind.number, name, kind.arguments, None


def _holds_structs(kind: Kind) -> bool:
    return kind.number == TType.STRUCT or (kind.number == TType.LIST and kind.arguments[0] == TType.STRUCT)


def missing_field(one: Struct) -> str | None:
    """The first required field that is not set, in `one` or in what it holds; None when all are there."""
    for name in one.required:
        if getattr(one, name) is None:
            return f"{type(one).__name__}.{name}"
    for name in one.inner:
        held: Any = getattr(one, name)
        for each in held if isinstance(held, list) else ():
            if found := missing_field(each):
                return found
        if isinstance(held, Struct) and (found := missing_field(held)):
            return found
    return None
