"""The type stubs in `typings/` declare only names that exist in the libraries."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

TYPINGS = Path(__file__).parents[2] / "typings"
STUBS = sorted(TYPINGS.rglob("*.pyi"))


def is_of_stub(name: str) -> bool:
    """Return whether a name exists only in the stubs, such as private bases and type aliases."""
    return name.startswith("_") or name in {"BufferLike", "TypeLike", "PathLike", "Source", "Sink"}


def has(found: ModuleType | type, name: str) -> bool:
    """Return whether the object or one of its subclasses has the name. For example, the members of an array depend on
    its type.
    """
    return hasattr(found, name) or (isinstance(found, type) and any(has(one, name) for one in found.__subclasses__()))


def missing(found: ModuleType | type, declared: list[ast.stmt]) -> list[str]:
    """Return the names that a stub module or class declares but the library lacks."""
    names: list[str] = []
    for one in declared:
        match one:
            case ast.ClassDef(name=name, body=body) if not is_of_stub(name) and hasattr(found, name):
                names += [f"{name}.{inner}" for inner in missing(getattr(found, name), body)]
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) if not is_of_stub(name) and not has(found, name):
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)) if isinstance(found, ModuleType) and not is_of_stub(name):
                names += [] if hasattr(found, name) else [name]
            case _:
                pass
    return names


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: str(stub.relative_to(TYPINGS)))
def test_stub_declares_only_existing_names(stub: Path):
    module = ".".join(stub.relative_to(TYPINGS).with_suffix("").parts).removesuffix(".__init__")
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    assert missing(importlib.import_module(module), tree.body) == []


def test_missing_stub_names_are_reported():
    tree = ast.parse("class ListType:\n    def value_type(self): ...\n    def other(self): ...\ndef nothing(): ...")
    assert missing(importlib.import_module("pyarrow"), tree.body) == ["ListType.other", "nothing"]
