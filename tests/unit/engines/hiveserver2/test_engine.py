"""HiveServer2: session configuration, resume tokens, and failed EXPLAIN statements."""

import pytest

from queryserver.engines.hiveserver2.engine import ResumeToken, session_configuration
from queryserver.engines.hiveserver2.structs import THandleIdentifier, TOperationHandle, TSessionHandle
from queryserver.engines.hiveserver2.variants import (
    HIVE,
    HPLSQL,
    IMPALA,
    SPARKSQL,
    VARIANTS,
    Hs2Address,
    Mechanism,
    Member,
)
from queryserver.engines.protocol import Credentials, SessionOptions
from queryserver.errors.statements import CredentialsRequired, OutcomeUnknown, StatementRejected
from queryserver.identity.model import User

MEMBER = Member("hive.example", 10000)
ADA = User(id=1, username="ada")
NONE = SessionOptions()


def test_engine_options_get_hive_configuration_prefix():
    address = Hs2Address((MEMBER,), session_conf={"a": "1", "b": "1"})
    options = SessionOptions(settings={"b": "2"}, database="shop")
    assert session_configuration(address, HIVE, ADA, options) == {
        "set:hiveconf:a": "1",
        "set:hiveconf:b": "2",
        "use:database": "shop",
    }


def test_database_name_is_quoted_for_spark_use_statement():
    told = session_configuration(Hs2Address((MEMBER,)), SPARKSQL, ADA, SessionOptions(database="x`; DROP TABLE y"))
    assert told == {"use:database": "`x``; DROP TABLE y`"}


def test_impala_timeouts_become_session_options():
    address = Hs2Address((MEMBER,), query_timeout_s=600, session_timeout_s=3600)
    told = session_configuration(address, IMPALA, ADA, SessionOptions(settings={"mem_limit": "1g"}))
    assert told["QUERY_TIMEOUT_S"] == "600"
    assert told["IDLE_SESSION_TIMEOUT"] == "3600"
    assert told["mem_limit"] == "1g"


def test_hplsql_session_sets_its_mode():
    assert session_configuration(Hs2Address((MEMBER,)), HPLSQL, ADA, NONE)["set:hivevar:mode"] == "HPLSQL"


@pytest.mark.parametrize(("variant", "key"), [(HIVE, "hive.server2.proxy.user"), (IMPALA, "impala.doas.user")])
def test_service_account_impersonates_the_caller(variant, key):
    address = Hs2Address((MEMBER,), username="svc", impersonation=True)
    assert session_configuration(address, variant, ADA, NONE)[key] == "ada"
    assert address.login(MEMBER, ADA, NONE).user == "svc"


def test_impersonation_needs_service_account_and_no_user_credentials():
    own = SessionOptions(credentials=Credentials("ada2", "secret"))
    for address in (Hs2Address((MEMBER,), impersonation=True), Hs2Address((MEMBER,), username="svc")):
        assert "hive.server2.proxy.user" not in session_configuration(address, HIVE, ADA, NONE)
    address = Hs2Address((MEMBER,), username="svc", impersonation=True)
    assert "hive.server2.proxy.user" not in session_configuration(address, HIVE, ADA, own)
    assert address.login(MEMBER, ADA, own).user == "ada2"


@pytest.mark.parametrize("name", ["a b", "a;b", "a=b", "", "1a", "use:database", "set:hivevar:mode"])
def test_invalid_setting_name_is_refused(name):
    with pytest.raises(StatementRejected):
        session_configuration(Hs2Address((MEMBER,)), HIVE, ADA, SessionOptions(settings={name: "1"}))


def test_missing_password_or_token_requires_credentials():
    with pytest.raises(CredentialsRequired):
        Hs2Address((MEMBER,), mechanism=Mechanism.LDAP).login(MEMBER, ADA, NONE)
    with pytest.raises(CredentialsRequired):
        Hs2Address((MEMBER,), mechanism=Mechanism.JWT).login(MEMBER, ADA, NONE)
    token = Hs2Address((MEMBER,), mechanism=Mechanism.JWT).login(MEMBER, ADA, SessionOptions(external_token="t.o.k"))
    assert token.password == "t.o.k"
    assert "t.o.k" not in repr(token)


def test_resume_token_round_trips():
    identifier = THandleIdentifier(guid=b"\0" * 16, secret=b"\xff" * 16)
    handles = identifier.guid, identifier.secret
    mark = ResumeToken(host="h", port=10000, session=handles, operation=handles, has_result_set=True)
    pair = f'["{"00" * 16}","{"ff" * 16}"]'
    text = f'{{"host":"h","port":10000,"session":{pair},"operation":{pair},"has_result_set":true}}'
    assert (mark.model_dump_json(), ResumeToken.from_text(text)) == (text, mark)
    assert mark.session_handle == TSessionHandle(session_id=identifier)
    assert mark.operation_handle == TOperationHandle(operation_id=identifier, operation_type=0, has_result_set=True)


@pytest.mark.parametrize("token", ["", "1", "{}", "[]", '{"host":"h","port":1,"session":["zz","00"],"operation":[]}'])
def test_invalid_resume_token_means_expired_results(token):
    with pytest.raises(OutcomeUnknown, match=r"^Results have expired"):
        ResumeToken.from_text(token)


def test_every_dialect_has_a_variant():
    assert set(VARIANTS) == {"hive", "impala", "sparksql", "hplsql"}


REFUSED = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `t` cannot be found.; line 1 pos 22;\n'Project [*]"


@pytest.mark.item(56)
@pytest.mark.parametrize(
    "before",
    ["== Physical Plan ==\norg.apache.spark.sql.AnalysisException: ", "Error occurred during query planning: \n"],
)
def test_error_in_place_of_a_plan_is_recognized(before: str) -> None:
    failure = SPARKSQL.capabilities.explain_failure
    assert failure is not None
    found = failure.match(before + REFUSED)
    assert found is not None
    assert (before + REFUSED)[found.end() :].strip() == REFUSED


@pytest.mark.item(56)
def test_plan_is_not_mistaken_for_an_error() -> None:
    failure = SPARKSQL.capabilities.explain_failure
    assert failure is not None
    plan = "== Physical Plan ==\n*(1) Project [a.b.SomeException:  AS x#1]\n+- *(1) Scan OneRowRelation[]"
    assert failure.match(plan) is None
