"""Bearer tokens, and the calls verify, refresh and revoke (Contract platform 3.1, 3.3 to 3.6)."""

import time
from pathlib import Path

import pytest
from jose import jwt
from pydantic import SecretStr
from tests.api.driving import Api, Caller, until
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, call, log_in, not_valid, tampered

from queryserver.errors.base import ConfigurationError
from queryserver.identity.model import AuthenticatedUser
from queryserver.platform.settings.sections import NO_SECRET


@pytest.mark.platform(20)
async def test_scheme_is_case_insensitive_and_other_schemes_are_ignored(tokens: Api) -> None:
    access = (await log_in(tokens))["access"]
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert (await call(tokens, ("Authorization", f"{scheme} {access}"))).status_code == 200
    for value in (f"Basic {access}", f"Token {access}", ""):
        response = await call(tokens, ("Authorization", value))
        assert response.json() == {"detail": "Authentication credentials were not provided."}


@pytest.mark.platform(21)
async def test_malformed_headers_get_a_distinct_response(tokens: Api, subtests: pytest.Subtests) -> None:
    for values in [["Bearer"], ["Bearer a b"], ["Bearer {0}", "Bearer {0}"]]:
        with subtests.test(values=values):
            access = (await log_in(tokens))["access"]
            response = await call(tokens, *(("Authorization", value.format(access)) for value in values))
            assert (response.status_code, response.json()) == (
                401,
                {
                    "detail": "Authorization header must contain two space-delimited values",
                    "code": "bad_authorization_header",
                },
            )
            assert response.headers["www-authenticate"] == 'Bearer realm="api"'


@pytest.mark.platform(21)
async def test_invalid_bearer_tokens_get_the_specified_bodies(tokens: Api) -> None:
    pair = await log_in(tokens)
    for token in (tampered(pair["access"]), "x", "a.b.c", "é"):
        response = await call(tokens, ("Authorization", f"Bearer {token}"))
        assert (response.status_code, response.json()) == (401, not_valid())
    assert (await bearer(tokens, pair["refresh"])).json() == not_valid("Token has wrong type")


@pytest.mark.platform(21, 22, 24)
async def test_expired_token_is_refused(opener: Opener) -> None:
    async with opener(access_token_lifetime_s=1, refresh_token_lifetime_s=2) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        pair = await log_in(api)
        claims = jwt.get_unverified_claims(pair["access"])
        assert claims["exp"] - claims["iat"] == 1
        await until(lambda: time.time() > jwt.get_unverified_claims(pair["refresh"])["exp"])
        assert (await bearer(api, pair["access"])).json() == not_valid()
        verified = await api.stranger.post("token/verify", token=pair["access"])
        assert (verified.status_code, verified.json()) == (401, not_valid(detail="Token is invalid or expired"))
        renewed = await api.stranger.post("token/refresh", refresh=pair["refresh"])
        assert renewed.json() == not_valid(kind="refresh", detail="Token is invalid or expired")


@pytest.mark.platform(22)
async def test_verify_accepts_exactly_the_valid_bearers(tokens: Api) -> None:
    pair = await log_in(tokens)
    assert (await tokens.stranger.post("token/verify", token=pair["access"])).json() == {}
    refused = await tokens.stranger.post("token/verify", token=tampered(pair["access"]))
    assert (refused.status_code, refused.json()) == (401, not_valid(detail="Token is invalid or expired"))
    refused = await tokens.stranger.post("token/verify", token=pair["refresh"])
    assert refused.json() == not_valid("Token has wrong type", detail="Token has wrong type")


@pytest.mark.platform(23)
async def test_refresh_returns_only_an_access_token(tokens: Api) -> None:
    pair = await log_in(tokens)
    renewed = await tokens.stranger.post("token/refresh", refresh=pair["refresh"])
    assert list(renewed.json()) == ["access"]
    assert (await bearer(tokens, renewed.json()["access"])).status_code == 200
    refused = await tokens.stranger.post("token/refresh", refresh=pair["access"])
    assert refused.json() == not_valid("Token has wrong type", "refresh", "Token has wrong type")


@pytest.mark.platform(24)
async def test_default_lifetimes_are_a_day_and_a_week(tokens: Api) -> None:
    pair = await log_in(tokens)
    lives = [
        claims["exp"] - claims["iat"] for claims in map(jwt.get_unverified_claims, (pair["access"], pair["refresh"]))
    ]
    assert lives == [86400, 604800]


@pytest.mark.platform(25)
async def test_generated_key_is_kept_after_the_process_ends(opener: Opener, tmp_path: Path) -> None:
    async with opener({"secret_key": NO_SECRET}) as first, opener({"secret_key": NO_SECRET}) as second:
        await accounts(first).create(AuthenticatedUser("ana"), PASSWORD)
        access = (await log_in(first))["access"]
        assert (await bearer(second, access)).status_code == 200
    async with opener({"secret_key": NO_SECRET}) as later:
        assert (await bearer(later, access)).status_code == 200
    assert (tmp_path / "data" / "secret_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.platform(26)
async def test_key_change_keeps_tokens_valid_only_with_the_old_key_configured(opener: Opener) -> None:
    other = SecretStr("Zr8#another-key-of-this-deployment-2")
    async with opener() as first:
        await accounts(first).create(AuthenticatedUser("ana"), PASSWORD)
        access = (await log_in(first))["access"]
        old = first.services.settings.desktop.secret_key
    with pytest.raises(ConfigurationError, match=r"desktop\.secret_key"):
        await opener({"secret_key": other}).__aenter__()
    async with opener({"secret_key": other, "secret_key_fallbacks": (old,)}) as later:
        assert (await bearer(later, access)).status_code == 200
        assert (await bearer(later, (await log_in(later))["access"])).status_code == 200


@pytest.mark.platform(29)
async def test_disabling_a_user_ends_all_tokens_permanently(opener: Opener) -> None:
    async with opener() as one, opener() as other:
        await accounts(one).create(AuthenticatedUser("ana"), PASSWORD)
        pair = await log_in(one)
        await accounts(one).disable("ana")
        inactive = {"detail": "User is inactive", "code": "user_inactive"}
        assert (await bearer(other, pair["access"])).json() == inactive
        assert (await other.stranger.post("token/verify", token=pair["access"])).json() == inactive
        assert (await other.stranger.post("token/refresh", refresh=pair["refresh"])).json() == inactive
        await accounts(one).enable("ana")
        assert (await bearer(other, pair["access"])).json() == not_valid()
        assert (await other.stranger.post("token/refresh", refresh=pair["refresh"])).status_code == 401
        assert (await log_in(other))["access"]


@pytest.mark.platform(21)
async def test_token_of_a_deleted_user_is_refused_as_user_not_found(tokens: Api) -> None:
    access = (await log_in(tokens))["access"]
    await tokens.database.execute("delete from users")
    assert (await bearer(tokens, access)).json() == {"detail": "User not found", "code": "user_not_found"}


@pytest.mark.platform(30)
async def test_password_change_invalidates_old_tokens(tokens: Api) -> None:
    pair = await log_in(tokens)
    await accounts(tokens).set_password("ana", "another password")
    assert (await bearer(tokens, pair["access"])).status_code == 401
    assert (await tokens.stranger.post("token/refresh", refresh=pair["refresh"])).status_code == 401
    assert (await bearer(tokens, (await log_in(tokens, password="another password"))["access"])).status_code == 200


@pytest.mark.platform(31)
@pytest.mark.parametrize("name", ["access", "refresh"])
async def test_revocation_ends_only_one_login(tokens: Api, name: str) -> None:
    mine, other = await log_in(tokens), await log_in(tokens)
    for _ in range(2):
        assert (await tokens.stranger.post("token/revoke", token=mine[name])).json() == {}
    assert (await bearer(tokens, mine["access"])).json() == not_valid()
    assert (await tokens.stranger.post("token/refresh", refresh=mine["refresh"])).status_code == 401
    assert (await bearer(tokens, other["access"])).status_code == 200


@pytest.mark.platform(31)
async def test_revoke_uses_the_bearer_and_all_ends_every_login(tokens: Api) -> None:
    mine, other = await log_in(tokens), await log_in(tokens)
    caller = Caller(tokens, "ana", {"Authorization": f"Bearer {mine['access']}"})
    assert (await caller.post("token/revoke", all="true")).json() == {}
    assert (await bearer(tokens, other["access"])).status_code == 401
    again = await log_in(tokens)
    assert (await caller.post("token/revoke", all="true")).json() == {}
    assert (await bearer(tokens, again["access"])).status_code == 200, "a dead token ends nothing"


@pytest.mark.parametrize("token", ["x", "eyJ.a.b"])
async def test_revoking_an_invalid_token_is_harmless(tokens: Api, token: str) -> None:
    assert (await tokens.stranger.post("token/revoke", token=token)).json() == {}
    refused = await tokens.stranger.post("token/revoke", token=token, all="perhaps")
    assert (refused.status_code, refused.json()) == (400, {"all": ["Must be a valid boolean."]})


@pytest.mark.platform(32)
@pytest.mark.security("T14")
async def test_reused_refresh_token_ends_its_family_after_the_grace_period(opener: Opener) -> None:
    async with opener(rotate_refresh_tokens=True) as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        first = await log_in(api)
        second = (await api.stranger.post("token/refresh", refresh=first["refresh"])).json()
        assert set(second) == {"access", "refresh"}
        in_grace = await api.stranger.post("token/refresh", refresh=first["refresh"])
        assert in_grace.status_code == 200
        await api.database.execute("update rotated_tokens set rotated_at = rotated_at - interval '31 s'")
        assert (await api.stranger.post("token/refresh", refresh=first["refresh"])).status_code == 401
        assert (await bearer(api, second["access"])).json() == not_valid()
        assert (await api.stranger.post("token/refresh", refresh=second["refresh"])).status_code == 401
