"""Names, docstrings, comments and documents avoid the words in wording.yaml.

The file wording_exceptions.yaml lists the names that still contain such words; no entry may be added to it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = [PROJECT / folder for folder in ("src", "tests", "scripts", "clients/python")]
GENERATED = {"generated.py"}
DOCUMENTS = [
    PROJECT / "README.md",
    PROJECT / "clients" / "python" / "README.md",
    PROJECT / "deploy" / "README.md",
    *(page for page in sorted((PROJECT / "docs").rglob("*.md")) if page.parent.name != "contract"),
]
LISTS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "wording.yaml").read_text())
EXCEPTIONS: dict[str, list[str]] = yaml.safe_load((Path(__file__).parent / "wording_exceptions.yaml").read_text())
NAME_WORDS: dict[str, str] = {**LISTS["words"], **LISTS["spelling"], **LISTS["name_words"]}
TEXT_WORDS: dict[str, str] = {**LISTS["words"], **LISTS["spelling"], **LISTS["text_words"]}
NOUNS = {noun.lower() for noun in LISTS["nouns"]}
PARTICIPLES = {participle.lower() for participle in LISTS["participles"]}

IN_NAME = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(NAME_WORDS)})(?![a-z])", re.IGNORECASE)
IN_TEXT = re.compile(rf"\b(?:{'|'.join(TEXT_WORDS)})\b", re.IGNORECASE)
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
LIMIT = re.compile(r"_?(?:MOST|LONGEST|most)(?:_|$)")
CODE_OR_TARGET = re.compile(r"`[^`\n]*`|\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    """The list in wording_exceptions.yaml that may permit the name: `words`, `classes`, `modules` or `limits`."""
    name: str
    message: str


def python_files() -> Iterator[Path]:
    for folder in SOURCES:
        for file in sorted(folder.rglob("*.py")):
            if file.name not in GENERATED and not any(part.startswith(".") for part in file.parts):
                yield file


def place(file: Path, line: int) -> str:
    return f"{file.relative_to(PROJECT)}:{line}"


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names of classes, functions, arguments, variables and attributes that a file defines, with
    their lines.
    """
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case _:
                pass


def name_findings(file: Path) -> Iterator[Finding]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for name, line in names(tree):
        for part in PART.findall(name):
            if replacement := NAME_WORDS.get(part.lower()):
                yield Finding("words", name, f"{place(file, line)} {name}: write {replacement}")
        if LIMIT.match(name):
            yield Finding("limits", name, f"{place(file, line)} {name}: name limits MAX_ or max_")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and is_participle(node.name.lstrip("_")):
            yield Finding("classes", node.name, f"{place(file, node.lineno)} {node.name}: name classes by nouns")
    if not file.stem.startswith("test_") and file.stem.endswith("ing") and is_participle(file.stem.split("_")[-1]):
        name = str(file.relative_to(PROJECT))
        yield Finding("modules", name, f"{name}: name modules by nouns, or add the noun to wording.yaml")


def is_participle(word: str) -> bool:
    """Return whether a name consists of a single participle."""
    if not PART.fullmatch(word) or word.lower() in NOUNS:
        return False
    return word.lower() in PARTICIPLES or bool(re.search(r"(?:[^e]ed|ing)$", word))


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of the docstrings and comments in a Python file, with their line numbers."""
    source = file.read_text(encoding="utf-8")
    if not IN_TEXT.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from enumerate(text.splitlines(), node.lineno)
            case _:
                pass
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def text_findings(file: Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for line, text in lines:
        for word in IN_TEXT.findall(CODE_OR_TARGET.sub("", text)):
            yield f"{place(file, line)} {word!r}: write {TEXT_WORDS[word.lower()]}"


def test_names_use_plain_words() -> None:
    # A single test checks both directions, because parsing all files takes seconds.
    found = [finding for file in python_files() for finding in name_findings(file)]
    refused = [finding.message for finding in found if finding.name not in EXCEPTIONS[finding.kind]]
    assert not refused, "\n" + "\n".join(refused)
    listed = {(kind, name) for kind, names in EXCEPTIONS.items() for name in names}
    unneeded = listed - {(finding.kind, finding.name) for finding in found}
    assert not unneeded, f"delete from wording_exceptions.yaml: {sorted(unneeded)}"


def test_docstrings_and_comments_use_plain_words() -> None:
    found = [finding for file in python_files() for finding in text_findings(file, texts(file))]
    assert not found, "\n" + "\n".join(found)


def test_documents_use_plain_words() -> None:
    found = [
        finding
        for document in DOCUMENTS
        for finding in text_findings(document, enumerate(document.read_text().splitlines(), 1))
    ]
    assert not found, "\n" + "\n".join(found)
