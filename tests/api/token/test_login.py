"""Logins with username and password, and the limits on failed logins (Contract platform 3.2, 3.7, 3.8, 3.10)."""

import asyncio
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from argon2 import Parameters, PasswordHasher, extract_parameters
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, Opener, accounts, log_in

from queryserver.errors.base import ConfigurationError
from queryserver.identity.model import AuthenticatedUser


@pytest.mark.platform(17)
async def test_login_returns_refresh_before_access(tokens: Api, subtests: pytest.Subtests) -> None:
    for path in ["token/auth", "token/auth/"]:
        for encoding in ["data", "json"]:
            with subtests.test(path=path, encoding=encoding):
                response = await tokens.stranger.send(
                    "POST", path, **{encoding: {"username": "ana", "password": PASSWORD}}
                )
                assert list(response.json()) == ["refresh", "access"]


REQUIRED, BLANK, NULL = "This field is required.", "This field may not be blank.", "This field may not be null."
NO_STRING = "Not a valid string."


@pytest.mark.platform(18)
async def test_field_map_contains_only_invalid_fields(tokens: Api, subtests: pytest.Subtests) -> None:
    for fields, problems in [
        ({}, {"username": [REQUIRED], "password": [REQUIRED]}),
        ({"username": "ana"}, {"password": [REQUIRED]}),
        ({"username": "  ", "password": ""}, {"username": [BLANK], "password": [BLANK]}),
        ({"username": None, "password": "x"}, {"username": [NULL]}),
        ({"username": ["ana"], "password": True}, {"username": [NO_STRING], "password": [NO_STRING]}),
        (
            {"username": "x" * 151, "password": "x"},
            {"username": ["Ensure this field has no more than 150 characters."]},
        ),
        (
            {"username": "x", "password": "é" * 513},
            {"password": ["Ensure this field has no more than 1024 characters."]},
        ),
    ]:
        with subtests.test(fields=fields, problems=problems):
            response = await tokens.stranger.send("POST", "token/auth", json=fields)
            assert (response.status_code, response.json()) == (400, problems)


@pytest.mark.platform(18)
@pytest.mark.parametrize(
    ("path", "name"), [("token/verify", "token"), ("token/refresh", "refresh"), ("token/revoke", "token")]
)
async def test_missing_token_field_is_named(tokens: Api, path: str, name: str) -> None:
    response = await tokens.stranger.post(path)
    assert (response.status_code, response.json()) == (400, {name: [REQUIRED]})


async def test_numbers_are_accepted_as_text(tokens: Api) -> None:
    await accounts(tokens).create(AuthenticatedUser("4711"), "7391048265")
    response = await tokens.stranger.send("POST", "token/auth", json={"username": 4711, "password": 7391048265})
    assert response.status_code == 200


REFUSED = {"detail": "No active account found with the given credentials"}


def stable_headers(response: httpx.Response) -> frozenset[tuple[str, str]]:
    """Return the names and values of all headers except those that are different in every response."""
    return frozenset((name, value) for name, value in response.headers.items() if name not in {"date", "x-request-id"})


@pytest.mark.platform(19)
@pytest.mark.security("T15")
async def test_refused_logins_look_the_same_and_cost_the_same_hash(tokens, monkeypatch):
    """A login spends most of its time on the hash. The test counts hashes, because measured times are unreliable on a
    busy machine.
    """
    await accounts(tokens).create(AuthenticatedUser("gone"), PASSWORD)
    await accounts(tokens).disable("gone")
    passwordless = (await tokens.user("nopassword")).username
    made: list[Parameters] = []
    verify, hash_anew = PasswordHasher.verify, PasswordHasher.hash

    def verified(hasher: PasswordHasher, known: str, password: str) -> Any:
        made.append(extract_parameters(known))
        return verify(hasher, known, password)

    def hashed(hasher: PasswordHasher, password: str) -> str:
        new = hash_anew(hasher, password)
        made.append(extract_parameters(new))
        return new

    monkeypatch.setattr(PasswordHasher, "verify", verified)
    monkeypatch.setattr(PasswordHasher, "hash", hashed)
    costs: dict[tuple[str, str], list[Parameters]] = {}
    headers: set[frozenset[tuple[str, str]]] = set()
    wrong = [(name, "wrong password") for name in ("ana", "gone", "nobody", passwordless, "x y", "..")]
    for name, password in [*wrong, ("gone", PASSWORD), ("nobody", PASSWORD), (passwordless, PASSWORD)]:
        made.clear()
        refused = await tokens.stranger.post("token/auth", username=name, password=password)
        assert (refused.status_code, refused.json()) == (401, REFUSED)
        headers.add(stable_headers(refused))
        costs[name, password] = list(made)
    assert len(costs["ana", "wrong password"]) == 1
    assert costs == dict.fromkeys(costs, costs["ana", "wrong password"])
    assert len(headers) == 1


@pytest.mark.platform(36)
@pytest.mark.parametrize("name", ["ANA", "ana", " ana "])
async def test_user_names_are_case_insensitive(tokens: Api, name: str) -> None:
    assert await log_in(tokens, name)


@pytest.mark.platform(37)
async def test_empty_database_refuses_every_login(opener: Opener) -> None:
    async with opener() as api:
        assert (await api.stranger.post("token/auth", username="ana", password=PASSWORD)).status_code == 401
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD, is_admin=True)
        assert await log_in(api)


@pytest.mark.platform(37)
async def test_concurrent_first_logins_create_exactly_one_administrator(opener: Opener) -> None:
    async with opener(first_login_becomes_admin=True, login_failures_per_address=0) as api:
        logins = [api.stranger.post("token/auth", username=f"user{n}", password=PASSWORD) for n in range(10)]
        statuses = sorted(response.status_code for response in await asyncio.gather(*logins))
        assert statuses == [200] + [401] * 9
        everybody = await accounts(api).all()
        assert [account.is_admin for account in everybody] == [True]


async def test_first_login_obeys_the_rules_for_new_users(opener: Opener) -> None:
    async with opener(first_login_becomes_admin=True) as api:
        assert (await api.stranger.post("token/auth", username="ana", password="short")).status_code == 401
        assert (await api.stranger.post("token/auth", username="a b", password=PASSWORD)).status_code == 401
        assert await accounts(api).all() == []


@pytest.mark.platform(37)
async def test_first_login_creates_no_administrator_without_local_logins(opener: Opener) -> None:
    refusing = "tests.fakes.plug_ins.Door"
    async with opener(backend=(refusing,), first_login_becomes_admin=True) as api:
        answer = await api.stranger.post("token/auth", username="ana", password=PASSWORD)
        assert answer.status_code == 401
        assert await accounts(api).all() == []


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"backend": ("local", "radius")}, "backend"), ({"backend": ()}, "backend"), ({"api_auth": ("x.Y",)}, "api_auth")],
)
async def test_unloadable_class_name_prevents_startup(opener: Opener, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^desktop\.auth\.{key}: "):
        await opener(**changes).__aenter__()


@pytest.mark.platform(33)
async def test_sixth_failure_is_throttled_until_the_window_ends(tokens: Api) -> None:
    for _ in range(5):
        assert (await tokens.stranger.post("token/auth", username="ana", password="wrong")).status_code == 401
    for password in ("wrong", PASSWORD):
        refused = await tokens.stranger.post("token/auth", username="ana", password=password)
        assert (refused.status_code, refused.json()["code"]) == (429, "login_throttled")
        assert 0 < int(refused.headers["retry-after"]) <= 300
    await tokens.database.execute("update login_failures set window_started_at = now() - interval '301 s'")
    assert await log_in(tokens)


@pytest.mark.platform(33)
async def test_unlock_clears_the_failures_of_a_name(tokens: Api) -> None:
    for _ in range(6):
        await tokens.stranger.post("token/auth", username="ana", password="wrong")
    await accounts(tokens).unlock("ANA")
    assert await log_in(tokens)


@pytest.mark.platform(34)
async def test_servers_share_failure_counts_including_unknown_names(opener: Opener) -> None:
    async with opener() as one, opener() as other:
        statuses = [
            (await api.stranger.post("token/auth", username="nobody", password="x")).status_code
            for api in (one, other, one, other, one, other)
        ]
        assert statuses == [401] * 5 + [429]


@pytest.mark.security("T15")
@pytest.mark.slow
async def test_concurrent_guesses_cannot_exceed_the_limit(tokens: Api) -> None:
    guesses = [tokens.stranger.post("token/auth", username="ana", password=f"wrong {n}") for n in range(30)]
    statuses = [response.status_code for response in await asyncio.gather(*guesses)]
    assert statuses.count(401) == 5
    assert statuses.count(429) == 25


async def test_success_resets_failures_of_its_name_and_address(tokens: Api) -> None:
    for _ in range(3):
        for _ in range(4):
            await tokens.stranger.post("token/auth", username="ana", password="wrong")
        assert await log_in(tokens)


@pytest.mark.platform(35)
async def test_forwarded_address_counts_only_from_a_trusted_proxy(opener: Opener) -> None:
    async def fail(api: Api, address: str) -> int:
        forged = {"X-Forwarded-For": address}
        fields = {"username": "nobody", "password": "x"}
        return (await api.stranger.send("POST", "token/auth", data=fields, headers=forged)).status_code

    async with opener() as direct:
        assert [await fail(direct, f"10.0.0.{n}") for n in range(6)] == [401] * 5 + [429]
        await direct.database.execute("delete from login_failures")
    async with opener({"trusted_proxies": (ip_network("127.0.0.1"),)}) as behind:
        assert [await fail(behind, f"10.0.0.{n}") for n in range(6)] == [401] * 6
        await behind.database.execute("delete from login_failures")
        assert [await fail(behind, f"2001:db8:0:1::{n}") for n in range(6)] == [401] * 5 + [429]
        assert await fail(behind, "2001:db8:0:2::1") == 401


@pytest.mark.platform(36)
@pytest.mark.security("T15")
async def test_spellings_of_a_name_share_their_failures(tokens: Api) -> None:
    spellings = ["ana", "ANA", " ana ", "\uff41\uff4e\uff41", "\uff21na"]
    for name in spellings:
        assert (await tokens.stranger.post("token/auth", username=name, password="wrong")).status_code == 401
    assert (await tokens.stranger.post("token/auth", username="ana", password=PASSWORD)).status_code == 429


@pytest.mark.platform(36)
@pytest.mark.security("T15")
async def test_spellings_that_a_directory_folds_share_their_failures(opener: Opener) -> None:
    rule = {"ignore_username_case": False, "force_username_lowercase": False}
    async with opener(login_failures_per_user_and_address=0, login_failures_per_user=8, **rule) as api:
        spellings = ["rene", "René", "RENE\u0301", "R\u00c9NE", "rene\u0301", "\uff32ene", "r\u00ebn\u00ea", "rEnE"]
        for name in spellings:
            assert (await api.stranger.post("token/auth", username=name, password="wrong")).status_code == 401, name
        assert (await api.stranger.post("token/auth", username="r\u00e8ne", password="wrong")).status_code == 429
        assert (await api.stranger.post("token/auth", username="irene", password="wrong")).status_code == 401
        await accounts(api).unlock("RENE")
        assert (await api.stranger.post("token/auth", username="ren\u00e9", password="wrong")).status_code == 401
