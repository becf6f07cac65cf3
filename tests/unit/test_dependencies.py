"""What the program imports is what it says it needs: development tools bring packages that a server lacks."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Imported under the roof of the package that brings it, on purpose.
BROUGHT_ALONG = {
    "starlette": "fastapi",
    "pydantic_core": "pydantic",
    "httpcore": "httpx",
    "aiohttp": "aiobotocore",
    "botocore": "aiobotocore",
    "pyasn1": "ldap3",
}


def imported() -> set[str]:
    """Top-level packages that src imports, anywhere in a file."""
    found: set[str] = set()
    for file in ROOT.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"queryserver"}


def declared() -> set[str]:
    """Distributions that the program declares, those of its extras too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: needed for name, needed in project["optional-dependencies"].items() if name != "dev"}
    every = [*project["dependencies"], *(one for needed in extras.values() for one in needed)]
    return {_normal(re.split(r"[\[><=;~ ]", one, maxsplit=1)[0]) for one in every}


def test_every_import_is_a_declared_dependency():
    distributions = packages_distributions()
    missing = {
        package
        for package in imported()
        if not {_normal(name) for name in distributions.get(BROUGHT_ALONG.get(package, package), [])} & declared()
    }
    assert missing == set()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
