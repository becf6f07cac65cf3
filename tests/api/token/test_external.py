"""Tokens of external issuers, and the users that the server creates for them (Contract platform 3.9, 4.1, 4.2; T12)."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import httpx
import pytest
from jose import jwt
from structlog.testing import capture_logs
from tests.api.driving import Api, Caller
from tests.api.token.logins import (
    PASSWORD,
    JwtOpener,
    Opener,
    accounts,
    bearer,
    call,
    link,
    log_in,
    not_valid,
    refusals,
)
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer, claims, jwk, public_pem, raw, rsa_key
from tests.fakes.webhdfs import Answer
from tests.fixtures.logs import audit_event_handler

from queryserver.errors.base import ConfigurationError, UnknownGroup
from queryserver.identity.build import ensure_administrator
from queryserver.identity.callers import CallerRepository
from queryserver.identity.external_keys import KeyCache
from queryserver.identity.external_tokens import TokenChecks
from queryserver.identity.model import AuthenticatedUser, Username
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.platform.logs import FIELDS


@pytest.mark.platform(39)
async def test_valid_external_token_is_accepted(external: Api, issuer: Issuer) -> None:
    for audience in (AUDIENCE, [AUDIENCE], ["other", AUDIENCE]):
        assert (await bearer(external, issuer.token(aud=audience, nbf=int(time.time())))).status_code == 200


# One day from now, so that the time is still in the future if the test runs long after its collection.
SOON = int(time.time()) + 86_400

BAD_CLAIMS: list[dict[str, Any]] = [
    *({"iss": value} for value in (None, "https://other.example", "", [ISSUER], 5)),
    *({"aud": value} for value in (None, "other", [], ["other"], {AUDIENCE: 1}, 5)),
    *({"exp": value} for value in (None, 0, 1_600_000_000, str(SOON), True, -1, 1e300, [SOON])),
    *({"nbf": value} for value in (SOON, "x", True)),
    *({"iat": value} for value in (SOON, "x", {})),
    *({"sub": value} for value in (None, "", "  ", 7, ["ana"], "a b", "x" * 151, "a\0b", "..")),
]


@pytest.mark.platform(39)
@pytest.mark.security("T12")
async def test_wrong_or_missing_claims_are_refused(external: Api, issuer: Issuer) -> None:
    for changes in BAD_CLAIMS:
        response = await bearer(external, issuer.token(**changes))
        assert (response.status_code, response.json()) == (401, not_valid()), changes
        assert response.headers["www-authenticate"] == 'Bearer realm="api"'
    assert (await bearer(external, issuer.token())).status_code == 200


async def test_log_states_why_a_revoked_token_was_refused(external: Api, issuer: Issuer) -> None:
    token = issuer.token(jti="a-jti")
    assert (await bearer(external, token)).status_code == 200
    await external.stranger.post("token/revoke", token=token)
    with capture_logs() as lines:
        assert (await bearer(external, token)).json() == not_valid()
        assert (await external.stranger.post("token/verify", token=token)).status_code == 401
    assert refusals(lines) == [("user", "the token was revoked")] * 2
    assert token.rpartition(".")[2] not in str(lines)


@pytest.mark.platform(39)
async def test_star_disables_issuer_and_audience_checks(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url, issuer="*", audience="*") as api:
        assert (await bearer(api, issuer.token(iss=None, aud=None))).status_code == 200
        assert (await bearer(api, issuer.token(exp=None))).status_code == 401


@pytest.mark.platform(39)
async def test_user_name_claim_is_configurable(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url, username_header="preferred_username") as api:
        assert (await bearer(api, issuer.token())).status_code == 401
        assert (await bearer(api, issuer.token(preferred_username="carl"))).status_code == 200
        assert [account.username for account in await accounts(api).all()] == ["carl"]


def forged(issuer: Issuer) -> dict[str, str]:
    """Return forged tokens, which must be rejected, by their defect."""
    good, mine = issuer.token(), rsa_key("mine")
    head, body, signature = good.split(".")
    pem = public_pem(issuer.keys["one"])
    own = jwk(mine, "one", alg="RS256")
    foreign = {"jwk": own, "jku": "http://127.0.0.1:1/keys", "x5u": "http://127.0.0.1:1/cert", "x5c": [pem]}
    return {
        "unknown key": issuer.token("two", key=mine),
        "another's key under a known kid": issuer.token("one", key=mine),
        "keys that it brings": issuer.token("one", key=mine, header=foreign),
        "no text as kid": raw({"alg": "RS256", "kid": 1}, claims(), signature),
        "kid is a path": raw({"alg": "RS256", "kid": "../../dev/null"}, claims(), signature),
        "kid is a list": raw({"alg": "RS256", "kid": ["one"]}, claims(), signature),
        "alg none": raw({"alg": "none", "kid": "one"}, claims()),
        "alg None with a signature": raw({"alg": "None", "kid": "one"}, claims(), signature),
        "alg a list": raw({"alg": ["RS256"], "kid": "one"}, claims(), signature),
        "alg RS512": raw({"alg": "RS512", "kid": "one"}, claims(), signature),
        "alg PS256": raw({"alg": "PS256", "kid": "one"}, claims(), signature),
        "HS256 with the public key": hmac_signed("HS256", pem, "one"),
        "HS384 with the public key": hmac_signed("HS384", pem, "one"),
        "no signature": f"{head}.{body}.",
        "other claims": ".".join([head, raw({}, claims(sub="root")).split(".")[1], signature]),
        "a header in front": f"{head}.{good}",
        "critical extensions": issuer.token(header={"crit": ["b64"], "b64": False}),
        "claims in a list": raw({"alg": "RS256", "kid": "one"}, claims(), signature).replace(body, "W10"),
        "no header": f".{body}.{signature}",
        "header is no JSON": f"e30e30.{body}.{signature}",
        "huge": f"{head}.{'A' * 60_000}.{signature}",
        "deep": raw({"alg": "RS256", "kid": "one"}, claims(), signature).replace(head, "W1tb" * 500),
    }


def hmac_signed(algorithm: str, secret: str, kid: str) -> str:
    """Sign a token with HMAC and any secret. An attacker may use a public key in PEM form as the secret, which the JWT
    library refuses.
    """
    import base64
    import hashlib
    import hmac

    signed = raw({"alg": algorithm, "typ": "JWT", "kid": kid}, claims()).rstrip(".")
    digest = hmac.new(secret.encode(), signed.encode(), hashlib.new("sha" + algorithm[2:]).name).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@pytest.mark.platform(28, 39)
@pytest.mark.security("T12")
async def test_forged_tokens_get_the_same_response(external: Api, issuer: Issuer) -> None:
    for reason, token in forged(issuer).items():
        response = await bearer(external, token)
        assert (response.status_code, response.json()) == (401, not_valid()), reason
        response = await external.stranger.post("token/verify", token=token)
        assert (response.status_code, response.json()["code"]) == (401, "token_not_valid"), reason
        assert (await external.stranger.post("token/revoke", token=token)).json() == {}, reason
    assert await accounts(external).all() == []
    assert {asked.path for server in issuer.servers for asked in server.asked} == {"/keys"}


@pytest.mark.platform(39)
@pytest.mark.security("T12")
async def test_token_without_kid_requires_a_single_key(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url) as api:
        assert (await bearer(api, issuer.token(None))).status_code == 200
    issuer.keys["two"] = rsa_key("two")
    async with issuer.serving() as url, jwt_opener(url) as api:
        assert (await bearer(api, issuer.token(None))).json() == not_valid()
        assert (await bearer(api, issuer.token("two"))).status_code == 200


@pytest.mark.platform(40)
async def test_own_tokens_work_alongside_external_tokens(external: Api, issuer: Issuer) -> None:
    await accounts(external).create(AuthenticatedUser("bob"), PASSWORD)
    own = (await log_in(external, "bob"))["access"]
    for token in (own, issuer.token()):
        assert (await bearer(external, token)).status_code == 200
        assert (await external.stranger.post("token/verify", token=token)).json() == {}
    assert (await bearer(external, own + "x")).json() == not_valid()
    assert (await call(external)).json() == {"detail": "Authentication credentials were not provided."}
    assert (await call(external, ("Authorization", "Bearer opaque"))).json() == not_valid()


@pytest.mark.platform(41)
async def test_hundred_calls_fetch_the_keys_once(external: Api, issuer: Issuer) -> None:
    tokens = [issuer.token(jti=str(number % 10)) for number in range(100)]
    answers = await asyncio.gather(*(bearer(external, token) for token in tokens))
    assert {answer.status_code for answer in answers} == {200}
    assert issuer.fetches == 1


@pytest.mark.platform(41)
@pytest.mark.security("T12")
async def test_unknown_keys_cause_one_fetch_per_interval(external: Api, issuer: Issuer) -> None:
    stranger = rsa_key("mine")
    for number in range(100):
        assert (await bearer(external, issuer.token(f"unknown{number}", key=stranger))).status_code == 401
    assert issuer.fetches == 1
    assert (await bearer(external, issuer.token())).status_code == 200
    assert issuer.fetches == 1


@pytest.mark.platform(41)
async def test_concurrent_unknown_keys_share_one_fetch(external: Api, issuer: Issuer) -> None:
    assert (await bearer(external, issuer.token())).status_code == 200
    tokens = [issuer.token(f"unknown{number}", key=rsa_key("mine")) for number in range(30)]
    await asyncio.gather(*(bearer(external, token) for token in tokens))
    assert issuer.fetches == 2


@pytest.mark.platform(43)
async def test_concurrent_calls_pick_up_a_new_key_with_one_fetch(external: Api, issuer: Issuer) -> None:
    assert (await bearer(external, issuer.token())).status_code == 200
    issuer.keys["two"] = rsa_key("two")
    answers = await asyncio.gather(*(bearer(external, issuer.token("two", jti=str(n))) for n in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert issuer.fetches == 2


@pytest.mark.platform(43)
async def test_removed_key_invalidates_its_tokens_at_the_next_fetch(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url) as api:
        old = issuer.token()
        assert (await bearer(api, old)).status_code == 200
        issuer.keys = {"two": rsa_key("two")}
        assert (await bearer(api, old)).status_code == 200, "the set is fresh"
        assert (await bearer(api, issuer.token("two"))).status_code == 200
        assert (await bearer(api, old)).json() == not_valid()


@pytest.mark.platform(43)
async def test_key_server_outage_does_not_affect_calls(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url, cache_s=0) as api:
        assert (await bearer(api, issuer.token())).status_code == 200
        issuer.answer = Answer(500)
        for _ in range(3):
            assert (await bearer(api, issuer.token())).status_code == 200
        assert issuer.fetches == 2, "nor is it asked again within the floor"


@pytest.mark.platform(45)
async def test_twenty_concurrent_first_calls_create_one_user(external: Api, issuer: Issuer) -> None:
    answers = await asyncio.gather(*(bearer(external, issuer.token(sub="ana", jti=str(n))) for n in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    (account,) = await accounts(external).all()
    assert (account.username, account.groups, account.is_active) == ("ana", ("default",), True)
    assert not account.is_admin
    assert not account.has_password
    assert account.last_login is not None


@pytest.mark.platform(45)
async def test_existing_user_name_is_accepted_only_once_linked(external: Api, issuer: Issuer) -> None:
    await accounts(external).create(AuthenticatedUser("ana"), PASSWORD, is_admin=True)
    assert (await bearer(external, issuer.token())).json() == not_valid()
    await link(external, "ANA")
    assert (await bearer(external, issuer.token())).status_code == 200
    assert (await external.stranger.post("token/verify", token=issuer.token())).json() == {}
    await accounts(external).create(AuthenticatedUser("bob"), PASSWORD, is_admin=True)
    await accounts(external).disable("ana")
    inactive = {"detail": "User is inactive", "code": "user_inactive"}
    assert (await bearer(external, issuer.token())).json() == inactive
    assert (await external.stranger.post("token/verify", token=issuer.token())).json() == inactive
    await accounts(external).enable("ana")
    assert (await bearer(external, issuer.token())).status_code == 200


async def test_unknown_external_users_can_be_refused(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url, create_users=False) as api:
        unknown = {"detail": "User not found", "code": "user_not_found"}
        assert (await bearer(api, issuer.token())).json() == unknown
        assert (await api.stranger.post("token/verify", token=issuer.token())).json() == unknown
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        await link(api, "ana")
        assert (await bearer(api, issuer.token())).status_code == 200


async def test_verify_does_not_create_a_user(external: Api, issuer: Issuer) -> None:
    assert (await external.stranger.post("token/verify", token=issuer.token())).json() == {}
    assert await accounts(external).all() == []


async def test_calls_within_an_hour_do_not_update_last_login(external: Api, issuer: Issuer) -> None:
    async def first_and_later() -> tuple[object, object]:
        await bearer(external, issuer.token())
        first = await external.database.value("select last_login from users")
        await bearer(external, issuer.token())
        return first, await external.database.value("select last_login from users")

    first, later = await first_and_later()
    assert first == later
    await external.database.execute("update users set last_login = now() - interval '61 min'")
    renewed, again = await first_and_later()
    assert renewed == again
    assert renewed > first


@pytest.mark.platform(31)
@pytest.mark.parametrize("jti", ["a-jti", None])
async def test_revoked_external_token_is_refused_on_every_server(jwt_opener, issuer, jti):
    async with issuer.serving() as url, jwt_opener(url) as one, jwt_opener(url) as other:
        mine, another = issuer.token(jti=jti), issuer.token(jti="another")
        assert (await bearer(other, mine)).status_code == 200
        for _ in range(2):
            assert (await one.stranger.post("token/revoke", token=mine)).json() == {}
        for api in (one, other):
            assert (await bearer(api, mine)).json() == not_valid()
            refused = await api.stranger.post("token/verify", token=mine)
            assert refused.json() == not_valid(detail="Token is invalid or expired")
            assert (await bearer(api, respelled(mine))).status_code == 401
            assert (await bearer(api, another)).status_code == 200
        stored = await one.database.row("select token_id, expires_at > now() as kept from revoked_tokens")
        assert stored is not None
        assert (stored["token_id"][:9], stored["kept"]) == ("external:", True)


def respelled(token: str) -> str:
    """Encode the same signature differently. One of the unused bits in its last character is changed."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + letters[letters.index(token[-1]) ^ 1]


async def test_revoking_all_with_an_external_token_also_ends_own_tokens(external: Api, issuer: Issuer) -> None:
    await accounts(external).create(AuthenticatedUser("ana"), PASSWORD)
    own = await log_in(external)
    assert (await external.stranger.post("token/revoke", token=issuer.token(), all="true")).json() == {}
    assert (await bearer(external, own["access"])).status_code == 200
    await link(external, "ana")
    other = issuer.token(jti="other")
    assert (await external.stranger.post("token/revoke", token=other, all="true")).json() == {}
    assert (await bearer(external, own["access"])).status_code == 401


async def test_refresh_accepts_only_own_tokens(external: Api, issuer: Issuer) -> None:
    response = await external.stranger.post("token/refresh", refresh=issuer.token())
    assert response.json() == not_valid(kind="refresh", detail="Token is invalid or expired")


@pytest.mark.platform(44)
async def test_custom_jwt_without_key_server_prevents_startup(opener: Opener) -> None:
    with pytest.raises(ConfigurationError, match=r"^desktop\.auth\.api_auth: custom_jwt requires"):
        await opener(api_auth=("custom_jwt", "jwt")).__aenter__()


async def test_external_tokens_are_refused_without_their_authenticator(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url, auth={"api_auth": ("jwt",)}) as api:
        assert (await bearer(api, issuer.token())).json() == not_valid()
        assert (await api.stranger.post("token/verify", token=issuer.token())).status_code == 401
        assert issuer.fetches == 0


async def test_public_key_cannot_be_used_as_an_hmac_secret(external: Api, issuer: Issuer) -> None:
    """The library that signs the service's own tokens refuses to use a public key in this way."""
    with pytest.raises(Exception, match="asymmetric key"):
        jwt.encode(claims(), public_pem(issuer.keys["one"]), algorithm="HS256")
    assert (await bearer(external, jwt.encode(claims(), "x" * 32, algorithm="HS256"))).json() == not_valid()


@pytest.mark.platform(39)
async def test_key_headers_are_ignored_regardless_of_length(external: Api, issuer: Issuer) -> None:
    header = {"x5c": ["M" * 1600] * 3, "x5u": "https://other.example", "jku": "https://other.example", "jwk": {}}
    assert (await bearer(external, issuer.token(header=header))).status_code == 200


async def test_verify_refuses_own_tokens_unless_they_are_enabled(jwt_opener: JwtOpener, issuer: Issuer) -> None:
    async with issuer.serving() as url, jwt_opener(url, auth={"api_auth": ("custom_jwt",)}) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        own = (await log_in(api))["access"]
        assert (await bearer(api, own)).status_code == 401
        refused = await api.stranger.post("token/verify", token=own)
        assert (refused.status_code, refused.json()) == (401, not_valid(detail="Token is invalid or expired"))
        await link(api, "ana")
        assert (await api.stranger.post("token/verify", token=issuer.token())).status_code == 200


class Clock:
    """A clock that stands still, so slow steps do not affect the test."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock with which applications that are opened later check tokens and keys of external issuers."""
    clock = Clock()
    monkeypatch.setattr("queryserver.identity.build.TokenChecks", partial(TokenChecks, clock=clock))
    monkeypatch.setattr("queryserver.identity.build.KeyCache", partial(KeyCache, clock=clock))
    return clock


@pytest.mark.platform(39)
async def test_clock_skew_is_accepted_only_within_the_leeway(clock, jwt_opener, issuer):
    now = int(clock.now)
    async with issuer.serving() as url, jwt_opener(url) as api:
        for good in ({"exp": now - 29}, {"nbf": now + 30}, {"iat": now + 30}):
            assert (await bearer(api, issuer.token(**{"iat": now, **good}))).status_code == 200, good
        for bad in ({"exp": now - 30}, {"nbf": now + 31}, {"iat": now + 31}):
            assert (await bearer(api, issuer.token(**{"iat": now, **bad}))).status_code == 401, bad


async def test_cached_token_is_refused_with_its_reason_after_expiry(clock, jwt_opener, issuer):
    async with issuer.serving() as url, jwt_opener(url, leeway_s=0) as api:
        token = issuer.token(iat=int(clock.now), exp=int(clock.now) + 2)
        clock.now += 1
        assert (await bearer(api, token)).status_code == 200
        clock.now += 1
        with capture_logs() as lines:
            for _ in range(2):
                assert (await bearer(api, token)).json() == not_valid()
        assert refusals(lines) == [("times", "it has expired")] * 2


@pytest.mark.platform(43)
async def test_stale_keys_are_not_used(clock: Clock, jwt_opener: JwtOpener, issuer: Issuer) -> None:
    token = issuer.token(iat=int(clock.now), exp=int(clock.now) + 600)
    async with issuer.serving() as url, jwt_opener(url, cache_s=0, max_stale_s=60, refetch_floor_s=0) as api:
        assert (await bearer(api, token)).status_code == 200
        issuer.answer = Answer(500)
        clock.now += 60
        assert (await bearer(api, token)).status_code == 200
        clock.now += 1
        response = await bearer(api, token)
        assert (response.status_code, response.json()["code"]) == (503, "key_server_unavailable")
        issuer.answer = None
        assert (await bearer(api, token)).status_code == 200


GROUPED = "tests.fakes.plug_ins.GroupedUserAuth"
DOOR = "tests.fakes.plug_ins.Door"
ANA = NewAccount(Username("ana", "ana"))
Refusal = tuple[str, str, str]
T = TypeVar("T")


@pytest.fixture
def changes() -> Iterator[list[Refusal]]:
    """The audited changes of users and groups, as operation, actor and object.

    Logins and the events of statements are excluded. Statements of earlier tests may still end.
    """
    refusals: list[Refusal] = []

    def hear(record: logging.LogRecord) -> None:
        fields = getattr(record, FIELDS)
        if record.getMessage() != "login" and not record.getMessage().startswith("statement."):
            assert (fields["outcome"], fields["by"]) == ("ok", "server")
            refusals.append((record.getMessage(), fields["user"], fields["subject"]))

    with audit_event_handler(hear):
        yield refusals


async def arrive(api: Api, name: str, groups: str = "") -> httpx.Response:
    headers = {"X-Grouped": name} | ({"X-Groups": groups} if groups else {})
    response = await Caller(api, "", headers).get("editor/get_history")
    assert response.status_code == 200
    return response


async def test_user_created_on_first_call_is_audited_once(opener: Opener, changes: list[Refusal]) -> None:
    async with opener(api_auth=(GROUPED, "jwt")) as api:
        await asyncio.gather(*(arrive(api, "ana") for _ in range(5)))
        await arrive(api, "ana")
    assert changes == [("user.create", "ana", "ana")]


async def test_membership_changes_are_audited(opener: Opener, changes: list[Refusal]) -> None:
    async with opener(api_auth=(GROUPED, "jwt")) as api:
        for group in ("analysts", "writers"):
            await AccountRepository(api.database).ensure_group(group, ())
        await asyncio.gather(*(arrive(api, "ana", "analysts,unknown") for _ in range(5)))
        assert changes == [("user.create", "ana", "ana"), ("group.add_member", "ana", "analysts ana")]
        changes.clear()
        await arrive(api, "ana", "writers")
        assert changes == [("group.add_member", "ana", "writers ana"), ("group.remove_member", "ana", "analysts ana")]


async def test_users_of_an_external_issuer_are_audited(opener: Opener, changes: list[Refusal]) -> None:
    issuer = Issuer()
    rules = {"issuer": ISSUER, "audience": AUDIENCE, "timeout_s": 60}
    async with issuer.serving() as url, opener(jwt={"key_server_url": (url,), **rules}) as api:
        assert (await bearer(api, issuer.token(sub="eve"))).status_code == 200
    assert changes == [("user.create", "eve", "eve")]


async def test_first_administrator_is_audited(opener: Opener, changes: list[Refusal]) -> None:
    async with opener(first_login_becomes_admin=True) as api:
        await log_in(api, "Ana")
        assert changes == [("user.create", "ana", "ana"), ("user.make_admin", "ana", "ana")]


async def test_login_that_promotes_a_user_to_administrator_is_audited(opener, changes):
    async with opener(first_login_becomes_admin=True) as api:
        await accounts(api).create(AuthenticatedUser("bob"), PASSWORD)
        for _ in range(2):
            await log_in(api, " BOB ")
        assert changes == [("user.make_admin", "bob", "bob")]


async def test_users_created_by_a_plug_in_backend_are_audited(opener: Opener, changes: list[Refusal]) -> None:
    async with opener(backend=(DOOR,)) as api:
        await AccountRepository(api.database).ensure_group("analysts", ())
        await log_in(api, "Ana", "let me in")
    assert changes == [("user.create", "ana", "ana"), ("group.add_member", "ana", "analysts ana")]


async def test_administrator_of_the_embedded_mode_is_audited(opener: Opener, changes: list[Refusal]) -> None:
    async with opener() as api:
        for _ in range(2):
            await ensure_administrator(accounts(api), PASSWORD, lambda _: None)
    assert changes == [("user.create", "admin", "admin"), ("user.make_admin", "admin", "admin")]


# This does not read pg_stat_activity, which stays the same until the end of a transaction: it would never list the
# connection of `work` if PostgreSQL had read the list before, because of a lock in another database.
_BLOCKS_ANOTHER = (
    "select exists (select from pg_locks where not granted and pg_backend_pid() = any (pg_blocking_pids(pid)))"
)


async def while_a_group_goes(api: Api, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the group `going` while another transaction is deleting the group; return the result of `work`."""
    async with api.database.transaction() as connection:
        await connection.execute("delete from groups where name = 'going'")
        waiting = asyncio.create_task(work)
        while not await connection.fetchval(_BLOCKS_ANOTHER):
            assert not waiting.done()
            await asyncio.sleep(0.01)
    return await waiting


async def test_group_deleted_during_a_login_is_omitted(opener: Opener) -> None:
    async with opener() as api:
        for group in ("going", "staying"):
            await AccountRepository(api.database).ensure_group(group, ())
        user_id = await AccountRepository(api.database).create(
            NewAccount(Username("ana", "ana")), default_group="default"
        )
        join = CallerRepository(api.database).join_only(user_id, ["going", "staying"], default_group="default")
        assert await while_a_group_goes(api, join) == {"default", "staying"}


async def test_group_deleted_during_creation_gets_no_member(opener: Opener) -> None:
    async with opener() as api:
        records = AccountRepository(api.database)
        await records.ensure_group("going", ())
        create = records.create(NewAccount(Username("ana", "ana"), groups=("going",)), default_group="default")
        with pytest.raises(UnknownGroup):
            await while_a_group_goes(api, create)
        assert await accounts(api).all() == []
        await records.ensure_group("going", ())
        create = records.create(ANA, default_group="going")
        await while_a_group_goes(api, create)
        assert [one.groups for one in await accounts(api).all()] == [()]
