"""No package of the lock files is old enough to have a published fault that touches what we do (security rule T32)."""

import re
from pathlib import Path

import pytest
from packaging.version import Version
from tests.cases import each

LOCKS = [Path(__file__).resolve().parents[2] / "requirements" / f"{name}.lock" for name in ("service", "embedded")]
PINNED = {
    package: version
    for file in LOCKS
    for package, version in re.findall(r"^([a-z0-9._-]+)==([^\s\\]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
}

# The first release without the fault, and the advisories it mends. A package that leaves the lock leaves this table.
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
# What reads bytes of strangers in our process: each has a floor, so that somebody has looked.
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
@each("package", FLOORS)
def test_the_lock_is_past_published_faults(package: str):
    floor, advisories = FLOORS[package]
    assert Version(PINNED[package]) >= Version(floor), advisories


@pytest.mark.security("T32")
def test_what_reads_bytes_of_strangers_has_a_floor():
    assert FLOORS.keys() >= READERS


@pytest.mark.security("T32")
def test_every_floor_names_its_advisory():
    assert [name for name, (_, advisories) in FLOORS.items() if not re.match(r"CVE-\d{4}-\d{4,}", advisories)] == []
