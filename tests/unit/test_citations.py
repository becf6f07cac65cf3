"""Every contract section that code, tests or documents cite exists in docs/contract."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "docs" / "contract"
_SECTION = r"\d+[a-z]?(?:\.\d+)*"
_CITATION = re.compile(rf"Contract (\w+) ({_SECTION}(?:(?:,| to| and|, and)\s+{_SECTION}(?![\w-]))*)")
_OTHER_PART = re.compile(
    rf"[,;]\s+(editor|importer|platform|security|storage) ({_SECTION}(?:(?:,| to| and)\s+{_SECTION}(?![\w-]))*)"
)
_RULE = re.compile(r"\b[Rr]ule (T\d+)")


def sections(text: str) -> set[str]:
    """Return the numbers of all headings and of the list items below them (item 5 of section 9.2 is `9.2.5`)."""
    found, heading = set[str](), ""
    for line in text.splitlines():
        if match := re.match(rf"(?:#+ |\*\*)({_SECTION})\.? ", line):
            heading = match[1]
            found.add(heading)
        elif match := re.match(r"\s*(\d+)\. ", line):
            found.add(f"{heading}.{match[1]}")
    return found


def citations(text: str) -> Iterator[tuple[str, str]]:
    """Yield the contract part and the section number of each citation in `text`."""
    for match in _CITATION.finditer(text):
        yield from ((match[1], number) for number in re.findall(_SECTION, match[2]))
        rest = text[match.end() : match.end() + 80].split(")", 1)[0]
        for other in _OTHER_PART.finditer(rest):
            yield from ((other[1], number) for number in re.findall(_SECTION, other[2]))


def cited_in(folder: str, pattern: str) -> Iterator[tuple[Path, str]]:
    for file in sorted((ROOT / folder).rglob(pattern)):
        yield file.relative_to(ROOT), file.read_text(encoding="utf-8")


def test_each_cited_contract_section_exists() -> None:
    known = {file.stem: sections(file.read_text(encoding="utf-8")) for file in CONTRACT.glob("*.md")}
    texts = [
        *cited_in("src", "*.py"),
        *cited_in("tests", "*.py"),
        *cited_in("scripts", "*.py"),
        *cited_in("docs", "*.md"),
    ]
    found = [(file, part, number) for file, text in texts for part, number in citations(text)]
    assert len(found) > 300
    assert not [each for each in found if each[2] not in known.get(each[1], set())]


def test_each_cited_security_rule_exists() -> None:
    text = (CONTRACT / "security.md").read_text(encoding="utf-8")
    cited = {(file, rule) for file, source in cited_in("src", "*.py") for rule in _RULE.findall(source)}
    assert cited
    assert not [each for each in cited if not re.search(rf"\b{each[1]}\b", text)]
