"""The restrictions that an API token places on its user, and the throttling of rejected tokens (issue 20, section 2;
ADR 62).
"""

from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import pytest

from queryserver.errors.base import DatabaseUnavailable, InvalidToken, LoginThrottled
from queryserver.identity.api_tokens import PREFIX, ApiTokenBearers, FailedTokens, digest_of, is_api_token
from queryserver.identity.model import ApiTokenLimits, Scope, User
from queryserver.platform.settings.desktop import AuthSettings

ANA = User(1, "ana", rights=frozenset({"importer", "connector:7", "security.impersonate"}), groups=frozenset({"g"}))
ROOT = User(2, "root", is_admin=True, rights=frozenset({"admin"}))


def token(*scopes: Scope, connectors: set[str] | None = None) -> ApiTokenLimits:
    limit = None if connectors is None else frozenset(connectors)
    return ApiTokenLimits(uuid4(), "one", frozenset(scopes), limit, b"")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class TestNarrowing:
    def test_narrowed_user_keeps_rights_and_gains_none(self):
        narrow = ANA.narrowed(token(Scope.QUERY, Scope.ADMIN))
        assert (narrow.rights, narrow.is_admin, narrow.groups) == (ANA.rights, False, ANA.groups)
        assert [scope for scope in Scope if narrow.has_scope(scope)] == [Scope.QUERY, Scope.QUERY_READ]
        assert [scope for scope in Scope if ANA.has_scope(scope)] == list(Scope)
        assert (narrow.is_in_any({"g"}), narrow.is_in_any({"h"})) == (True, False)

    def test_administrator_without_admin_scope_has_the_other_rights(self):
        narrow = ROOT.narrowed(token(Scope.QUERY))
        assert not narrow.is_admin
        assert all(narrow.may(right) for right in ("download", "importer", "metadata", "filebrowser.s3_access"))
        assert not narrow.may("admin")
        assert not narrow.may("security.impersonate")
        assert narrow.may_use("connector:7")
        assert narrow.is_in_any({"analysts"})

    def test_administrator_with_admin_scope_remains_administrator(self):
        assert ROOT.narrowed(token(Scope.ADMIN)).is_admin

    @pytest.mark.parametrize("user", [ANA, ROOT])
    def test_connector_limit_applies_to_stored_and_configured_connectors(self, user: User):
        narrow = user.narrowed(token(Scope.QUERY, connectors={"7", "duckdb"}))
        assert [narrow.reaches(key) for key in ("7", "duckdb", "77", "sqlite")] == [True, True, False, False]
        assert narrow.may_use("connector:7")
        assert not narrow.may_use("connector:77")
        assert not user.narrowed(token(Scope.QUERY, connectors=set())).may_use("connector:7")


@pytest.mark.parametrize("text", [
    PREFIX, PREFIX + "A" * 42, PREFIX + "A" * 44, PREFIX + "A" * 42 + "=", PREFIX + "é" * 43,
    "QST_" + "A" * 43, PREFIX + "A" * 43 + "\n", "eyJ.e30.c2ln"])  # fmt: skip
def test_malformed_token_has_no_digest(text: str):
    assert digest_of(text) is None


def test_other_kinds_of_tokens_are_not_api_tokens():
    assert is_api_token(PREFIX)
    assert not is_api_token("eyJ.e30.c2ln")


class TestThrottle:
    def test_throttle_window_starts_at_the_first_failure_and_stays_fixed(self):
        clock = Clock()
        failures = FailedTokens(2, 300, clock=clock)
        failures.count("10.0.0.1", b"a")
        clock.now += 200
        failures.count("10.0.0.1", b"b")
        with pytest.raises(LoginThrottled) as refused:
            failures.require_free("10.0.0.1")
        assert refused.value.retry_after.total_seconds() == 100
        failures.require_free("10.0.0.2")
        clock.now += 100
        failures.require_free("10.0.0.1")

    def test_token_counts_once_per_window_and_network(self):
        clock = Clock()
        failures = FailedTokens(2, 300, clock=clock)
        for _ in range(2):
            for _ in range(5):
                failures.count("10.0.0.1", b"dead")
            failures.require_free("10.0.0.1")
            failures.count("10.0.0.1", b"other")
            with pytest.raises(LoginThrottled):
                failures.require_free("10.0.0.1")
            failures.count("10.0.0.2", b"dead")
            failures.require_free("10.0.0.2")
            clock.now += 300

    async def test_rejected_token_is_cached_for_a_while(self):
        class Records:
            asked = 0

            async def api_token(self, _digest: bytes) -> None:
                self.asked += 1

        records, clock = Records(), Clock()
        bearers = ApiTokenBearers(cast("Any", records), AuthSettings(), clock=clock)
        for expected in (1, 2):
            for text in ("A" * 43, "too short"):
                for _ in range(50):
                    with pytest.raises(InvalidToken):
                        await bearers.user(PREFIX + text, "10.0.0.1")
            assert records.asked == expected
            clock.now += 10
        for letter in "BCDE":  # other tokens from the same network are still checked
            with pytest.raises(InvalidToken):
                await bearers.user(PREFIX + letter * 43, "10.0.0.1")

    def test_ipv6_network_counts_as_one_address(self):
        failures = FailedTokens(1, 300)
        failures.count("2001:db8::1", b"a")
        with pytest.raises(LoginThrottled):
            failures.require_free("2001:db8::2")

    def test_zero_means_no_limit(self):
        failures = FailedTokens(0, 300)
        failures.count("10.0.0.1", b"a")
        failures.require_free("10.0.0.1")


async def test_unrecorded_uses_are_recorded_later():
    class Records:
        noted: list[set[Any]] = []  # noqa: RUF012
        is_away = True

        async def note_api_tokens(self, used: set[Any]) -> None:
            if self.is_away:
                raise DatabaseUnavailable
            self.noted.append(used)

    records: Any = Records()
    bearers = ApiTokenBearers(records, AuthSettings())
    used = uuid4()
    bearers._used.add(used)
    with pytest.raises(DatabaseUnavailable):
        await bearers.note_uses()
    records.is_away = False
    await bearers.note_uses()
    await bearers.note_uses()
    assert records.noted == [{used}]
