"""The documents agree with the project: links, paths, commands and settings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from queryserver import __version__
from queryserver.cli.commands import app
from queryserver.platform.settings.loader import load_settings
from queryserver.platform.settings.sections import Section, keys
from queryserver.platform.settings.tree import Settings

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "src" / "queryserver"
CLIENT = PROJECT / "clients" / "python"
RECORDS = sorted((PROJECT / "docs" / "adr").glob("[0-9]*.md"))
CONTRACT = sorted((PROJECT / "docs" / "contract").glob("*.md"))
DOCUMENTS = [
    *(directory / name for directory in (PROJECT, CLIENT) for name in ("README.md", "CHANGELOG.md")),
    PROJECT / "deploy" / "README.md",
    *sorted(page for page in (PROJECT / "docs").rglob("*.md") if page not in CONTRACT),
]
HEADINGS = ["Context", "Decision", "Consequences", "Alternatives"]

PATH = re.compile(r"[\w.@-]+(?:/[\w.@-]+)*/?")
FOLDERS = {path.name for root in (PROJECT, PACKAGE) for path in root.iterdir() if path.is_dir()}
SUFFIXES = {".cfg", ".conf", ".js", ".json", ".lock", ".md", ".py", ".service", ".sh", ".toml", ".ts", ".yaml", ".yml"}
IN_MANY_FOLDERS = {"build.py", "model.py", "repository.py"}
"""Names that need no folder, because most folders of the package contain such a file."""
NOT_IN_THE_TREE = {
    "ask.py": "readers save the example of the README under this name",
    "connectors/types": "the contract names a call of the API",
    "login.json": "qs writes it into the home directory of its user",
    "package-lock.json": "an engine that the tests download has it",
    "queryserver.toml": "the operator writes it",
    "swagger-ui-bundle.js": "a package from PyPI has it",
}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
every_page = pytest.mark.parametrize(
    "document", [*DOCUMENTS, *CONTRACT], ids=lambda path: str(path.relative_to(PROJECT))
)
every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name)


def prose(document: Path) -> str:
    """Return the text without fenced code blocks."""
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def fenced(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)


def code_words(document: Path) -> Iterator[str]:
    """Yield the words in backticks outside fenced code blocks."""
    return (found[1] for found in re.finditer(r"`([^`\n]+)`", prose(document)))


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def anchors(document: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)}


def is_setting(name: str) -> bool:
    """Return whether `name` is a setting or a settings table.

    Any key below a table with user-defined names is valid.
    """
    section: type[Section] | None = Settings
    for part in name.split("."):
        if section is None or part not in (known := keys(section)):
            return False
        if known[part].entries or known[part].has_free_names:
            return True
        section = known[part].section
    return True


@cache
def sources() -> dict[str, str]:
    """Return the source text of each file of the package."""
    return {str(file): file.read_text() for file in PACKAGE.rglob("*.py")}


def is_path(word: str) -> bool:
    """Return whether a word in backticks is a path of the project, judged by its first folder or its suffix."""
    if not PATH.fullmatch(word):
        return False
    return ("/" in word and word.partition("/")[0] in FOLDERS) or Path(word).suffix in SUFFIXES


def paragraphs(document: Path) -> Iterator[list[str]]:
    """Yield the words in backticks, grouped by paragraph, list item or table row."""
    for text in re.split(r"\n(?=\s*[-|]|\s*\d+\.|\s*$)", prose(document)):
        yield re.findall(r"`([^`\n]+)`", text)


def missing_files(document: Path) -> Iterator[str]:
    """Yield the paths that exist neither below the project root, nor below the package, nor next to the page.

    A bare file name may also be in a folder that the same paragraph names or, for a page in `deploy`, anywhere below
    the page's folder.
    """
    roots = [PROJECT, PACKAGE, document.parent]
    for words in paragraphs(document):
        paths = [word.removeprefix("./") for word in words if is_path(word.removeprefix("./"))]
        named = [root / path for root in roots for path in paths if "/" in path]
        folders = [*roots, *(path if path.is_dir() else path.parent for path in named)]
        for path in paths:
            if path in NOT_IN_THE_TREE or path in IN_MANY_FOLDERS:
                continue
            is_beside = document.parent.name == "deploy" and any(document.parent.rglob(path))
            if not is_beside and not any((folder / path).exists() for folder in folders):
                yield path


@every_page
def test_links_resolve(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.is_relative_to(PROJECT), target
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@every_page
def test_files_named_in_backticks_exist(document: Path) -> None:
    assert list(missing_files(document)) == []


def test_path_exceptions_are_named_by_a_page_and_still_missing() -> None:
    named = {word.removeprefix("./") for page in [*DOCUMENTS, *CONTRACT] for word in code_words(page)}
    assert set(NOT_IN_THE_TREE) <= named
    assert [path for path in NOT_IN_THE_TREE if any((root / path).exists() for root in (PROJECT, PACKAGE))] == []


@every_document
def test_named_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join([*code_words(document), *fenced(document, "sh")])
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets


@every_document
def test_named_commands_exist(document: Path) -> None:
    commands = get_command(app).commands
    names = set(commands) | {f"config {name}" for name in commands["config"].commands}
    text = "\n".join([*code_words(document), *fenced(document, "sh")])
    named = re.findall(r"\bqueryserver ((?:config )?[a-z][a-z_-]+)", text)
    assert [name for name in named if name not in names] == []


@every_document
def test_named_metrics_exist(document: Path) -> None:
    named = [word for word in code_words(document) if re.fullmatch(r"queryserver_[a-z_]+", word)]
    texts = sources().values()
    assert [name for name in named if not any(f'"{name.removesuffix("_total")}"' in text for text in texts)] == []


@every_document
def test_settings_named_in_backticks_exist(document: Path) -> None:
    sections = "|".join(keys(Settings))
    named = [word for word in code_words(document) if re.fullmatch(rf"(?:{sections})(?:\.[a-z_]+)+", word)]
    assert [name for name in named if not is_setting(name)] == []


@every_document
def test_documented_settings_files_are_valid(document: Path, tmp_path: Path) -> None:
    for number, block in enumerate(fenced(document, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        load_settings(file, {})


@every_record
def test_record_has_its_headings_in_order(record: Path) -> None:
    assert re.findall(r"^## (.+)$", record.read_text(), re.MULTILINE) == HEADINGS


def numbers_in(line: str) -> list[int]:
    """Return the numbers of the records to which a line links."""
    return [int(number) for number in re.findall(r"\[(?:ADR )?(\d+)\]", line)]


@cache
def records() -> dict[int, "Record"]:
    found = [Record.of(file) for file in RECORDS]
    return {record.number: record for record in found}


@dataclass(frozen=True, slots=True)
class Record:
    """The header of an architecture decision record."""

    number: int
    title: str
    file: str
    status: str
    """The status as written in the index: `accepted`, or `superseded by` followed by the newer record."""
    changes: list[int]
    """The numbers of the records that this record amends or supersedes."""
    changed_by: list[int]

    @classmethod
    def of(cls, file: Path) -> "Record":
        head, _, _ = file.read_text().partition("\n## ")
        title = re.match(r"# (\d+)\. (.+[^.\n])\n", head)
        assert title, "a record begins with `# <number>. <title>`"
        status = re.search(r"^Date: \d{4}-\d\d-\d\d\. Status: (accepted|superseded by .+)\.", head, re.MULTILINE)
        assert status, "the date and status follow"
        changes = re.findall(r"^(?:Amends|Supersedes) (.+)$", head, re.MULTILINE)
        amended = re.findall(r"^Amended by (.+)$", head, re.MULTILINE)
        return cls(
            number=int(title[1]),
            title=title[2],
            file=file.name,
            status=status[1],
            changes=[number for line in changes for number in numbers_in(line)],
            changed_by=[number for line in (*amended, status[1]) for number in numbers_in(line)],
        )

    def index_row(self) -> str:
        amended = ", ".join(f"[{number}]({records()[number].file})" for number in self.changed_by)
        is_amended = self.status == "accepted" and amended
        status = f"accepted, amended by {amended}" if is_amended else self.status
        return f"| [{self.number}]({self.file}) | {self.title} | {status} |"


@every_record
def test_record_file_is_named_by_number_and_title(record: Path) -> None:
    header = Record.of(record)
    assert record.name == f"{header.number:04}-{slug(header.title)}.md"


@every_record
def test_changed_record_and_changing_record_name_each_other(record: Path) -> None:
    number = Record.of(record).number
    assert Record.of(record).changed_by == [other.number for other in records().values() if number in other.changes]


def test_record_index_is_complete() -> None:
    rows = [
        line for line in (PROJECT / "docs" / "adr" / "README.md").read_text().splitlines() if line.startswith("| [")
    ]
    assert rows == [record.index_row() for record in records().values()]


def test_record_numbers_are_unique_and_gapless() -> None:
    numbers = [int(record.name[:4]) for record in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1))
    assert numbers


@every_document
def test_records_named_by_number_exist(document: Path) -> None:
    named = {int(number) for number in re.findall(r"\bADR (\d+)", prose(document))}
    assert named <= set(range(1, len(RECORDS) + 1))


def test_newest_version_comes_first_in_the_changelog() -> None:
    headings = re.findall(r"^## (.+)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [tuple(map(int, heading.split(" ")[0].split("."))) for heading in headings if heading != "Unreleased"]
    assert versions == sorted(versions, reverse=True)
    assert headings[0] == "Unreleased" or headings[0].startswith(f"{__version__} ")
