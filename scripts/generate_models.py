"""Generate the wire models of the server and of its Python client from openapi/resources.yaml.

With --check, only compare them with the files. datamodel-code-generator creates the server's models
(src/queryserver/api/schemas/generated.py), which this script changes in four ways. Keys outside `required` are omitted
from the response if their value is None. Times are strings. Enumerations are strings or integers whose schema lists the
values. Fields have no descriptions, which would double the import time; the API description takes them from
resources.yaml.

The client's models (clients/python/src/queryserver_client/generated.py) are TypedDicts, which cost nothing at run time
and accept additional keys from newer servers.
"""

import ast
import subprocess
import sys
from pathlib import Path

from scripts.generated_files import PROJECT, refresh

SOURCE = PROJECT / "openapi" / "resources.yaml"
TARGET = PROJECT / "src" / "queryserver" / "api" / "schemas" / "generated.py"
CLIENT_TARGET = PROJECT / "clients" / "python" / "src" / "queryserver_client" / "generated.py"
WIRE = "queryserver.api.schemas.fields"
HEADER = "# Generated from openapi/resources.yaml by scripts/generate_models.py (make models); never edited.\n"
DOCSTRING = '"""Wire models: one class for each resource of openapi/resources.yaml."""\n\n'
CLIENT_DOCSTRING = '"""Responses of the server: one TypedDict for each resource of openapi/resources.yaml."""\n\n'
OPTIONS = (
    "--input-file-type=openapi",
    "--disable-timestamp",
    "--enum-field-as-literal=all",
    "--ignore-pyproject",
    "--no-formatters",
    "--use-schema-description",
    "--use-standard-collections",
    "--use-union-operator",
)
SERVER_OPTIONS = (
    "--output-model-type=pydantic_v2.BaseModel",
    "--target-python-version=3.11",
    "--target-pydantic-version=2.12",
    f"--base-class={WIRE}.WireModel",
    "--disable-future-imports",
    "--use-annotated",
)
CLIENT_OPTIONS = ("--output-model-type=typing.TypedDict", "--target-python-version=3.10")


def generate() -> str:
    """Return the source of the server's module. The same input gives the same text."""
    tree = _models(SERVER_OPTIONS)
    tree = _OmitAbsentKeys().visit(_WithoutDescriptions().visit(_PlainValues().visit(tree)))
    return _formatted(DOCSTRING, tree)


def generate_client() -> str:
    """Return the source of the client's module."""
    return _formatted(CLIENT_DOCSTRING, _OnlyTyping().visit(_models(CLIENT_OPTIONS)))


def _models(options: tuple[str, ...]) -> ast.Module:
    program = str(Path(sys.executable).with_name("datamodel-codegen"))
    return ast.parse(_run([program, f"--input={SOURCE}", *OPTIONS, *options]))


def _formatted(docstring: str, tree: ast.Module) -> str:
    text = HEADER + docstring + ast.unparse(ast.fix_missing_locations(tree))
    return _run([str(Path(sys.executable).with_name("ruff")), "format", "-"], text)


class _OmitAbsentKeys(ast.NodeTransformer):
    """Replaces `key: X | None = None`, also inside Annotated, with `key: Omittable[X] = None`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module == WIRE:
            node.names = [ast.alias(name) for name in ("Omittable", "Time", "WireModel", "one_of")]
        if node.module == "typing":
            node.names = [alias for alias in node.names if alias.name != "Optional"]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        match node:
            case ast.AnnAssign(value=None):
                pass
            case ast.AnnAssign(annotation=ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple(elts=parts))):
                parts[0] = _omittable(parts[0])
            case _:
                node.annotation = _omittable(node.annotation)
        return node


class _PlainValues(ast.NodeTransformer):
    """Replaces times with `Time`, and each `Literal` with a string or integer whose schema lists the values."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        node.names = [alias for alias in node.names if alias.name != "AwareDatetime"]
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("Time") if node.id == "AwareDatetime" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name("Literal"), slice=ast.Tuple(elts=words)):
                plain = type(ast.literal_eval(words[0])).__name__
                named = ast.Call(ast.Name("one_of"), words, [])
                return ast.Subscript(ast.Name("Annotated"), ast.Tuple([ast.Name(plain), named]))
            case _:
                self.generic_visit(node)
                return node


class _OnlyTyping(ast.NodeTransformer):
    """Makes the module depend only on `typing` of Python 3.10 at run time.

    NotRequired is newer, so it is imported only for type checking. `extra_items`, the type of additional keys, is newer
    still, so it is removed.
    """

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if node.module == "typing":
            names = sorted({alias.name for alias in node.names} | {"TYPE_CHECKING", "TypedDict"})
            node.names = [ast.alias(name) for name in names]
        if node.module != "typing_extensions":
            return node
        node.names = [ast.alias("NotRequired")]
        return ast.If(ast.Name("TYPE_CHECKING"), [node], [])

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.keywords = []
        return node


class _WithoutDescriptions(ast.NodeTransformer):
    """Replaces `key: Annotated[X, Field(description=…)]` with `key: X`. Other arguments of Field are kept.

    A model that is not an object has a single field, `root`, whose description is kept because it is the model's.
    """

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        match node:
            case ast.AnnAssign(target=ast.Name("root")):
                pass
            case ast.AnnAssign(
                annotation=ast.Subscript(ast.Name("Annotated"), ast.Tuple([bare, ast.Call(ast.Name("Field")) as field]))
            ):
                field.keywords = [keyword for keyword in field.keywords if keyword.arg != "description"]
                node.annotation = node.annotation if field.keywords else bare
        return node


def _omittable(nullable: ast.expr) -> ast.expr:
    match nullable:
        case ast.BinOp(left=bare, op=ast.BitOr(), right=ast.Constant(value=None)):
            pass
        case ast.Subscript(value=ast.Name("Optional"), slice=bare):
            pass
        case _:
            message = f"{ast.unparse(nullable)}: an optional key has no default"
            raise ValueError(message)
    return ast.Subscript(ast.Name("Omittable"), bare)


def _run(command: list[str], text: str | None = None) -> str:
    """Run a tool of this environment and return its output; its error messages go to stderr."""
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=PROJECT).stdout


if __name__ == "__main__":
    sys.exit(refresh({TARGET: generate(), CLIENT_TARGET: generate_client()}))
