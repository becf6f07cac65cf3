"""References of uploaded files (Contract importer 3.1)."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.imports.model import MAX_NAME, UploadReference, reminder_of

SECRET = "3q2-7wAAu1Xl9mXcQ0pTn8vYb5kR4sEoZ6dJhLfGi1M"


@pytest.mark.importer(3)
@given(st.text())
def test_every_reference_reads_as_itself(client_name: str) -> None:
    reference = UploadReference.new(client_name)
    assert re.fullmatch(r"upload/[A-Za-z0-9_-]{43}/[\w.-]{1,100}", str(reference))
    assert UploadReference.read(str(reference)) == reference


@pytest.mark.importer(10)
@given(st.text())
def test_reading_never_fails_and_never_bends(text: str) -> None:
    reference = UploadReference.read(text)
    assert reference is None or str(reference) == text


@pytest.mark.importer(10)
@pytest.mark.parametrize(
    "text",
    [
        "",
        f"upload/{SECRET}",
        f"upload/{SECRET}/",
        f"upload/{SECRET}/a/b",
        f"upload/{SECRET}a/b",
        f"upload/{SECRET[1:]}/b",
        f"upload/{SECRET[1:]}=/b",
        f"/upload/{SECRET}/b",
        f"uploads/{SECRET}/b",
        f"upload/{SECRET}/{'b' * (MAX_NAME + 1)}",
        f"upload/{SECRET}/b\n/",
    ],
)
def test_what_has_another_form_is_none(text: str) -> None:
    assert UploadReference.read(text) is None


@pytest.mark.security("T21")
def test_references_cannot_be_guessed_and_hide_their_secret() -> None:
    made = [UploadReference.new("a.csv") for _ in range(1000)]
    assert len({reference.secret for reference in made}) == 1000
    reference = made[0]
    assert reference.secret not in repr(reference)
    assert reference.digest == hashlib.sha256(reference.secret.encode()).digest()


@pytest.mark.importer(4)
@given(st.text())
def test_a_reminder_is_no_path(client_name: str) -> None:
    name = reminder_of(client_name)
    assert 1 <= len(name) <= MAX_NAME
    assert not set(name) & set("/\\\0\n\r\"' &?#%")
    assert name.strip(".")
