"""Parsing and validation of request fields."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scripts.api_schemas import as_form, query_parameters
from scripts.export_openapi import TARGET
from tests.refusals import raises_code

from queryserver.api.schemas.fields import FORM_PATTERN, Fields, Flag, Text, parse
from queryserver.api.schemas.requests import editor, importer, metadata, platform, storage
from queryserver.api.schemas.requests.editor import (
    CheckStatusRequest,
    CloseSessionRequest,
    CreateNotebookRequest,
    DownloadParameters,
    EndRequest,
    EventsParameters,
    ExecuteRequest,
    FetchRequest,
    HistoryParameters,
    LogsRequest,
    OperationRequest,
    SessionRequest,
)
from queryserver.api.schemas.requests.storage import RequestFields, StorageFields, parse_request
from queryserver.errors.base import InvalidJson, InvalidParameter, MissingParameter

TRUE_WORDS = ["true", "1", "yes", "on", "y", "t", "yea"]
FALSE_WORDS = ["false", "0", "no", "off", "n", "f", "nay", ""]
NO_TEXT = [5, 1.5, True, [], {}]
SNIPPET = {"type": "mysql", "statement": "SELECT 1", "result": {"handle": {"statement_id": 0}}}
CREDENTIALS = [{"name": "user", "value": "ana"}, {"name": "password", "value": "s3cret"}]
SETTINGS = {"key": "settings", "value": [{"key": "tez.queue.name", "value": "etl"}]}
UNCLEAN = ["a\0b", "\ud800", "x\udfff"]


def execute(**fields: Any) -> ExecuteRequest:
    return parse(ExecuteRequest, {"statement": "SELECT 1", **fields})


def fetch(**fields: Any) -> FetchRequest:
    return parse(FetchRequest, {"operationId": "u", **fields})


def cased(words: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(words).flatmap(lambda word: st.sampled_from([word, word.upper(), word.title()]))


class TestBooleans:
    @given(cased(TRUE_WORDS), cased(FALSE_WORDS))
    def test_boolean_words_are_case_insensitive(self, true: str, false: str):
        assert (fetch(startOver=true).start_over, fetch(startOver=false).start_over) == (True, False)

    def test_json_booleans_are_accepted(self):
        assert (fetch(startOver=True).start_over, fetch(startOver=False).start_over) == (True, False)

    @given(st.text().filter(lambda word: word.lower() not in {*TRUE_WORDS, *FALSE_WORDS}))
    def test_other_words_are_invalid_booleans(self, word: str):
        with pytest.raises(InvalidParameter, match="startOver must be true or false"):
            fetch(startOver=word)

    @pytest.mark.parametrize("value", [0, 1, 1.0, [], {}])
    def test_json_numbers_and_containers_are_invalid_booleans(self, value: Any):
        with pytest.raises(InvalidParameter, match="startOver"):
            fetch(startOver=value)


class TestIntegers:
    @given(st.integers(1, 10_000), st.sampled_from(["", "+", "0"]))
    def test_decimal_text_equals_json_numbers(self, number: int, prefix: str):
        for rows in (f"{prefix}{number}", number, float(number)):
            assert fetch(rows=rows).rows == number

    @pytest.mark.item(22)
    @pytest.mark.parametrize("rows", ["0", "-1", "x", "", "-" + "9" * 30, 0, -1, -(10**30), True, 1.5])
    def test_rows_below_one_are_invalid(self, rows: Any):
        with pytest.raises(InvalidParameter, match="rows must be an integer of at least 1"):
            fetch(rows=rows)

    @pytest.mark.item(22)
    @pytest.mark.parametrize(
        "rows", ["100000", "100001", "+200000", "0" * 30 + "1" * 30, "9" * 5000, 100_001, 2**63, 10**30, 1e300]
    )
    def test_rows_above_the_limit_are_capped(self, rows: Any):
        assert fetch(rows=rows).rows == 100_000

    def test_page_sizes_have_no_maximum(self):
        sizes = {"limit", "rows", "pagesize", "count", "length", "size"}
        found = [
            (
                model.__name__,
                name,
                TypeAdapter(field.annotation if not field.metadata else Annotated[field.annotation, *field.metadata]),
            )
            for chapter in (editor, importer, metadata, platform, storage)
            for model in vars(chapter).values()
            if isinstance(model, type) and issubclass(model, Fields)
            for name, field in model.model_fields.items()
            if name in sizes
        ]
        assert len(found) > 10
        for model, name, field in found:
            assert field.validate_python("9" * 30) >= 100, (model, name)

    @pytest.mark.item(22)
    @pytest.mark.item(32)
    def test_negative_start_row_and_limit_below_one_are_invalid(self):
        with pytest.raises(InvalidParameter, match="start_row must be an integer of at least 0"):
            fetch(start_row="-1")
        with pytest.raises(InvalidParameter, match="limit must be an integer of at least 1"):
            execute(limit="0")

    @given(
        st.text().filter(lambda text: not text.removeprefix("+").removeprefix("-").isdigit())
        | st.floats().filter(lambda number: not number.is_integer())
        | st.booleans()
        | st.lists(st.integers())
    )
    def test_other_values_are_invalid_integers(self, value: Any):
        with pytest.raises(InvalidParameter, match="timeout must be an integer from 1 to 86400"):
            execute(timeout=value)

    @pytest.mark.parametrize("value", ["", " 5", "5 ", "5.0", "1e3", "0x10", "1_000", "\u0665", "--5"])
    def test_integer_text_is_plain_decimal_digits(self, value: str):
        with pytest.raises(InvalidParameter, match="timeout"):
            execute(timeout=value)

    @pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "9999999999999999999", 1e300])
    def test_integers_beyond_bigint_are_invalid(self, value: Any):
        with pytest.raises(InvalidParameter, match="session_id"):
            execute(session_id=value)


class TestWait:
    @pytest.mark.parametrize(
        ("value", "seconds"), [("0", 0), ("60", 60), ("1.5", 1.5), (".5", 0.5), ("5e-1", 0.5), (30, 30), (0.25, 0.25)]
    )
    def test_wait_accepts_fractions_of_a_second(self, value: Any, seconds: float):
        assert parse(CheckStatusRequest, {"operationId": "u", "wait": value}).wait == seconds

    @pytest.mark.item(13)
    @pytest.mark.parametrize("value", ["61", "x", "-1", "nan", "inf", "", "1e2", "1e", 61, -0.5, float("nan"), True])
    def test_wait_outside_0_to_60_is_invalid(self, value: Any):
        with pytest.raises(InvalidParameter, match="wait must be a number from 0 to 60"):
            parse(CheckStatusRequest, {"operationId": "u", "wait": value})


class TestText:
    @pytest.mark.item(5)
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
    def test_statement_is_used_exactly_as_decoded(self, text: str):
        statement = f"SELECT '{text}'"
        assert execute(statement=statement).script == statement

    @pytest.mark.parametrize("value", NO_TEXT)
    @pytest.mark.parametrize("field", ["statement", "database", "operationId", "client_request_id"])
    def test_json_types_other_than_text_are_invalid(self, field: str, value: Any):
        with pytest.raises(InvalidParameter, match=f"{field} must be a string"):
            execute(**{field: value})

    @pytest.mark.parametrize("text", UNCLEAN)
    def test_nul_and_lone_surrogates_are_invalid_even_as_json_escapes(self, text: str):
        with pytest.raises(InvalidParameter, match="statement must not contain"):
            execute(statement=text)
        with pytest.raises(InvalidJson, match="snippet is not valid"):
            parse(ExecuteRequest, {"snippet": json.dumps({"statement": text})})


class TestJsonFields:
    @pytest.mark.item(4)
    def test_json_text_equals_native_objects(self):
        native = parse(ExecuteRequest, {"snippet": SNIPPET})
        assert parse(ExecuteRequest, {"snippet": json.dumps(SNIPPET)}) == native

    @pytest.mark.parametrize(
        "text", ["{", "", "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a":' * 70 + "1" + "}" * 70]
    )
    def test_text_other_than_strict_json_is_invalid_json(self, text: str):
        with pytest.raises(InvalidJson, match="snippet is not valid"):
            execute(snippet=text)

    @pytest.mark.parametrize("value", ["[1]", "1", '"x"', [1], 5, True])
    def test_json_other_than_an_object_is_an_invalid_parameter(self, value: Any):
        with pytest.raises(InvalidParameter, match="snippet must be a JSON object"):
            execute(snippet=value)

    @pytest.mark.parametrize(
        ("model", "field", "fields"),
        [
            (ExecuteRequest, "notebook.sessions", lambda n: {"notebook": {"sessions": [{"id": 1}] * n}}),
            (
                ExecuteRequest,
                "snippet.properties.settings",
                lambda n: {"snippet": {"properties": {"settings": [{"key": "k", "value": "v"}] * n}}},
            ),
            (SessionRequest, "session.properties", lambda n: {"session": {"type": "x", "properties": [{}] * n}}),
        ],
    )
    def test_arrays_are_limited_to_a_thousand_entries(self, model, field, fields) -> None:
        parse(model, {"statement": "x", **fields(1000)})
        with pytest.raises(InvalidParameter, match=f"{field} must have at most 1000 entries"):
            parse(model, {"statement": "x", **fields(1001)})

    def test_stored_properties_have_a_value_limit(self):
        with pytest.raises(InvalidParameter, match=r"session\.properties must contain at most 10000 values"):
            parse(SessionRequest, {"session": {"type": "x", "properties": [{"value": [0] * 10_000}]}})

    def test_json_text_depth_follows_the_settings(self):
        two_levels = {"statement": "x", "snippet": '{"a":{}}'}
        assert parse(ExecuteRequest, two_levels, max_json_depth=2)
        with pytest.raises(InvalidJson):
            parse(ExecuteRequest, two_levels, max_json_depth=1)

    def test_parse_errors_precede_range_errors(self):
        with pytest.raises(InvalidJson, match="notebook"):
            execute(timeout="0", notebook="{")

    def test_unused_members_may_have_any_form(self):
        snippet = {"id": 5, "properties": {"files": "x"}, "result": {"type": 1}, "status": None}
        assert execute(snippet=snippet).snippet.dialect is None

    @pytest.mark.item(71)
    def test_unknown_request_fields_are_ignored(self):
        assert execute(foo="x", bar=[1]) == execute()

    def test_null_equals_an_absent_field_at_every_level(self):
        snippet = {"type": None, "result": {"handle": {"statement_id": None, "previous_statement_hash": None}}}
        request = execute(database=None, wait=None, snippet=snippet, notebook=None)
        assert request == execute(snippet={"result": {"handle": {}}})
        assert request.previous is None


class TestExecute:
    @pytest.mark.item(6)
    @pytest.mark.parametrize(
        "fields", [{}, {"statement": ""}, {"statement": " \n\t"}, {"snippet": "{}"}, {"statement": None}]
    )
    def test_script_or_operation_is_required(self, fields: dict[str, Any]):
        with pytest.raises(MissingParameter, match="statement"):
            _ = parse(ExecuteRequest, fields).script

    def test_operation_may_replace_the_script(self):
        request = parse(ExecuteRequest, {"operationId": "u", "statement": ""})
        assert (request.operation_id, request.script) == ("u", None)

    def test_fields_override_the_snippet(self):
        snippet = {"statement": "SELECT 2", "database": "b"}
        assert execute(database="a", snippet=snippet).script == "SELECT 1"
        assert execute(database="a", snippet=snippet).current_database == "a"
        assert parse(ExecuteRequest, {"snippet": snippet}).current_database == "b"

    def test_connector_overrides_type(self):
        assert execute(snippet={"type": "hive", "connector": {"id": 7}}).snippet.dialect == "7"
        assert execute(snippet={"type": "hive", "connector": {"type": "trino", "id": "7"}}).snippet.dialect == "trino"
        assert execute(snippet={"type": "hive", "connector": {}}).snippet.dialect == "hive"

    def test_notebook_provides_the_session_of_the_dialect(self):
        notebook = {
            "sessions": [{"type": "impala", "id": 1}, {"type": "hive", "id": None}, {"type": "Hive", "id": "41"}]
        }
        assert execute(notebook=notebook).session_for({"hive"}) == 41
        assert execute(notebook=notebook, session_id="3").session_for({"hive"}) == 3
        assert execute(notebook=notebook).session_for({"trino"}) is None

    @pytest.mark.parametrize(
        ("notebook", "hidden", "parent"),
        [
            ({}, False, None),
            ({"type": "notebook"}, True, None),
            ({"type": "query-hive", "skipHistorify": "true"}, True, None),
            ({"isSaved": True, "uuid": "u"}, False, "u"),
            ({"isSaved": True, "uuid": "u", "parentSavedQueryUuid": "p"}, False, "p"),
            ({"isSaved": False, "uuid": "u"}, False, None),
        ],
    )
    def test_notebook_decides_history_visibility(self, notebook: dict[str, Any], hidden: bool, parent: str | None):
        parsed = execute(notebook=notebook).notebook
        assert (parsed.hides_history, parsed.saved_uuid) == (hidden, parent)

    @pytest.mark.item(49)
    @pytest.mark.parametrize(
        "member", ["statement_id", "statements_count", "has_more_statements", "previous_statement_hash"]
    )
    def test_any_of_four_members_makes_a_handle_name_the_previous_statement(self, member: str):
        assert execute(snippet={"result": {"handle": {member: "1"}}}).previous is not None

    def test_handle_with_only_a_guid_names_no_previous_statement(self):
        request = execute(snippet={"result": {"handle": {"guid": "g"}}})
        assert (request.previous, request.snippet.guid) == (None, "g")

    def test_settings_become_text(self):
        settings = [{"key": "a", "value": "x"}, {"key": "b", "value": 5}, {"key": "c", "value": True}]
        assert execute(snippet={"properties": {"settings": settings}}).settings == {"a": "x", "b": "5", "c": "true"}

    @pytest.mark.parametrize("settings", [{}, "x", [1], [{"key": 1, "value": "x"}], [{"key": "a", "value": []}]])
    def test_malformed_settings_are_invalid(self, settings: Any):
        with pytest.raises(InvalidParameter, match=r"snippet\.properties\.settings"):
            execute(snippet={"properties": {"settings": settings}})


class TestIdempotencyKey:
    @pytest.mark.item(44)
    def test_key_field_and_header_are_equivalent(self):
        assert execute(client_request_id="k").idempotency_key(None) == "k"
        assert execute().idempotency_key("k") == "k"
        assert execute(client_request_id="k").idempotency_key("k") == "k"
        assert execute().idempotency_key(None) is None

    def test_different_keys_conflict(self):
        with raises_code("conflicting_parameters"):
            execute(client_request_id="a").idempotency_key("b")

    @pytest.mark.parametrize("key", ["", "é", "a\tb", "a" * 256])
    def test_key_is_1_to_255_printable_ascii_characters(self, key: str):
        with pytest.raises(InvalidParameter, match="client_request_id must be 1 to 255"):
            execute(client_request_id=key)
        with pytest.raises(InvalidParameter, match="Idempotency-Key must be 1 to 255"):
            execute().idempotency_key(key)


class TestOperations:
    @pytest.mark.parametrize("model", [OperationRequest, CheckStatusRequest, FetchRequest, LogsRequest, EndRequest])
    @pytest.mark.parametrize("fields", [{}, {"operationId": " "}, {"snippet": '{"result": {"handle": {}}}'}])
    def test_operation_id_is_required(self, model: type[OperationRequest], fields: dict[str, Any]):
        with pytest.raises(MissingParameter, match="operationId"):
            _ = parse(model, fields).id_and_guid

    def test_operation_id_precedes_the_guid(self):
        snippet = {"result": {"handle": {"guid": "g"}}}
        assert parse(OperationRequest, {"snippet": snippet}).id_and_guid == (None, "g")
        assert parse(OperationRequest, {"operationId": "u", "snippet": snippet}).id_and_guid == ("u", None)

    def test_only_cancel_and_close_read_the_notebook_uuid(self):
        fields = {"notebook": {"uuid": "n"}}
        assert parse(EndRequest, fields).id_and_guid == ("n", None)
        assert parse(EndRequest, {"operationId": "u", **fields}).id_and_guid == ("u", None)
        with pytest.raises(MissingParameter):
            _ = parse(CheckStatusRequest, fields).id_and_guid

    def test_logs_accept_from_and_size_and_ignore_full_log(self):
        request = parse(LogsRequest, {"operationId": "u", "from": "3", "size": "10", "full_log": "x"})
        assert (request.start, request.size) == (3, 10)
        assert parse(LogsRequest, {"operationId": "u"}).start is None

    @pytest.mark.parametrize("fields", [{"from": "-1"}, {"from": "x"}, {"size": "0"}])
    def test_invalid_log_ranges_are_rejected(self, fields: dict[str, Any]):
        with pytest.raises(InvalidParameter, match=next(iter(fields))):
            parse(LogsRequest, {"operationId": "u", **fields})


class TestQueries:
    @pytest.mark.item(67)
    @pytest.mark.parametrize(("limit", "used"), [("1", 1), ("100", 100), ("101", 100), ("0", 100), ("-5", 100)])
    def test_history_limit_out_of_range_becomes_100(self, limit: str, used: int):
        assert parse(HistoryParameters, {"limit": limit}).limit == used

    @pytest.mark.parametrize("fields", [{"page": "0"}, {"page": "x"}, {"limit": "x"}, {"limit": "1.5"}])
    def test_history_numbers_must_be_integers(self, fields: dict[str, Any]):
        with pytest.raises(InvalidParameter, match=next(iter(fields))):
            parse(HistoryParameters, fields)

    def test_history_page_offset_fits_a_bigint(self):
        parameters = parse(HistoryParameters, {"page": str(2**63 - 1)})
        assert parameters.page * parameters.limit < 2**63

    def test_empty_flag_or_state_is_accepted_and_documented(self):
        for model, name in ((HistoryParameters, "is_active"), (platform.TaskListParameters, "state")):
            parse(model, {name: ""})
            described = {one["name"]: one for one in query_parameters(model)}
            assert described[name]["allowEmptyValue"] is True
        with pytest.raises(InvalidParameter, match="state must be one of queued, "):
            parse(platform.TaskListParameters, {"state": " "})

    @pytest.mark.parametrize("number", [2**63, 10**30])
    def test_history_numbers_have_no_maximum_in_parser_and_schema(self, number: int):
        parse(HistoryParameters, {"page": str(number), "limit": str(number)})
        parse(HistoryParameters, {"limit": str(-number)})
        described = {one["name"]: one["schema"] for one in query_parameters(HistoryParameters)}
        for name in ("page", "limit"):
            assert "maximum" not in described[name]
        assert "minimum" not in described["limit"]

    def test_empty_doc_type_means_all_dialects(self):
        assert parse(HistoryParameters, {"doc_type": ""}).doc_type is None

    @pytest.mark.item(55)
    @pytest.mark.parametrize("fields", [{"format": "x"}, {"format": "CSV"}, {"guard": "maybe"}])
    def test_unknown_download_words_are_invalid(self, fields: dict[str, Any]):
        with pytest.raises(InvalidParameter, match=next(iter(fields))):
            parse(DownloadParameters, fields)

    def test_query_parameters_are_documented_by_their_wire_names(self):
        described = {one["name"]: one["schema"] for one in query_parameters(HistoryParameters)}
        names = ["doc_type", "doc_text", "doc_connector", "page", "limit", "is_active", "is_notification_manager"]
        assert list(described) == names
        assert described["doc_type"] == {"type": "string"}
        assert described["page"] == {"type": "integer", "minimum": 1, "default": 1}

    def test_events_start_at_the_first_line_by_default(self):
        assert parse(EventsParameters, {}).log_from == 0


class TestScopes:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("query", ["query"]),
            (" query ,\timport\r\n,, ", ["query", "import"]),
            ('["query"]', ["query"]),
            (' [ "query" , "files:read" ] ', ["query", "files:read"]),
            ("", None),
            (",", None),
            ("[]", None),
            ("Query", None),
            ("query import", None),
            ("query,x", None),
            ('["x"]', None),
            ("query\x1c", None),
            ("query\n]", None),
        ],
    )
    def test_form_pattern_accepts_the_same_scope_lists_as_the_parser(self, text: str, names: list[str] | None):
        pattern = re.compile(as_form(platform.NewApiTokenRequest.model_json_schema(), repeats=frozenset())
                             ["properties"]["scopes"]["pattern"])  # fmt: skip
        assert (pattern.search(text) is not None) == (names is not None)
        if names:
            assert list(parse(platform.NewApiTokenRequest, {"name": "n", "scopes": text}).scopes) == names

    @pytest.mark.parametrize("text", ["Query", "query import", '["x"]', "query\x1c", [{}], [[]], [None], [1]])
    def test_unknown_scope_is_rejected_with_the_known_scopes(self, text: Any):
        with pytest.raises(InvalidParameter, match=r"^scopes\.0 must be one of query, query:read, files:read, "):
            parse(platform.NewApiTokenRequest, {"name": "n", "scopes": text})

    def test_form_pattern_is_absent_from_the_document(self):
        assert FORM_PATTERN not in TARGET.read_text(encoding="utf-8")


class TestSessions:
    @pytest.mark.parametrize("fields", [{}, {"session": {}}, {"session": '{"id": 1}'}])
    def test_create_requires_a_type(self, fields: dict[str, Any]):
        with pytest.raises(MissingParameter, match="session"):
            parse(SessionRequest, fields)

    def test_close_requires_an_id_or_a_type(self):
        assert parse(CloseSessionRequest, {"session": {"id": "41"}}).session.id == 41
        assert parse(CloseSessionRequest, {"session": {"type": "hive"}}).session.type == "hive"
        with pytest.raises(MissingParameter, match=r"session\.type"):
            parse(CloseSessionRequest, {"session": {}})

    def test_properties_provide_credentials_and_settings(self):
        session = parse(SessionRequest, {"session": {"type": "hive", "properties": [*CREDENTIALS, SETTINGS]}}).session
        assert session.credentials == ("ana", "s3cret")
        assert session.settings == {"tez.queue.name": "etl"}

    @pytest.mark.item(58)
    def test_shown_properties_mask_the_password(self):
        session = parse(SessionRequest, {"session": {"type": "hive", "properties": [*CREDENTIALS, {"x": 1}]}}).session
        assert session.shown_properties == [
            {"name": "user", "value": "ana"},
            {"name": "password", "value": ""},
            {"x": 1},
        ]

    @pytest.mark.item(58)
    @pytest.mark.parametrize("member", ["name", "key"])
    @pytest.mark.parametrize("word", ["password", "Password", "PASSWD", "db.password", "pwd"])
    def test_password_is_masked_in_any_spelling(self, member: str, word: str):
        session = parse(SessionRequest, {"session": {"type": "hive", "properties": [{member: word, "value": "s3"}]}})
        assert session.session.shown_properties == [{member: word, "value": ""}]

    @pytest.mark.parametrize("properties",
        [{}, [5], [{"name": "user", "value": 5}], [{"key": "settings", "value": [{"key": "a", "value": []}]}],
        [{"key": "settings", "value": "x"}], [{"other": {"deep": ["a\0"]}}], [{"other": float("inf")}]])  # fmt: skip
    def test_malformed_properties_are_invalid(self, properties: Any):
        with pytest.raises(InvalidParameter, match="session"):
            parse(SessionRequest, {"session": {"type": "hive", "properties": properties}})

    def test_empty_notebook_type_uses_the_default(self):
        assert parse(CreateNotebookRequest, {"type": ""}).type is None


class Moved(StorageFields):
    """The request fields of a move."""

    SYNONYMS: ClassVar[Mapping[str, Sequence[str]]] = {"dest_path": ("dest_path", "destination_path", "dest")}

    dest_path: Text | None = None
    overwrite: Flag = False


def read(query: Mapping[str, Sequence[Any]], body: Mapping[str, Sequence[Any]]) -> Moved:
    return parse_request(Moved, RequestFields(query, body), max_json_depth=10)


@pytest.mark.storage(7)
@pytest.mark.parametrize(("text", "native"), [("true", True), ("false", False), ("yes", "yes")])
def test_equal_values_in_query_and_body_do_not_conflict(text: str, native: object) -> None:
    assert read({"overwrite": [text]}, {"overwrite": [native]}).overwrite is (text != "false")


@pytest.mark.storage(7)
@pytest.mark.parametrize("native", [False, "false", "", "1"])
def test_different_values_in_query_and_body_conflict(native: object) -> None:
    with raises_code("conflicting_parameters"):
        read({"overwrite": ["true"]}, {"overwrite": [native]})


@pytest.mark.storage(7)
def test_synonyms_with_different_values_conflict() -> None:
    assert read({}, {"dest": ["/a"], "destination_path": ["/a"]}).dest_path == "/a"
    with raises_code("conflicting_parameters"):
        read({"destination_path": ["/a"]}, {"dest_path": ["/b"]})


def test_last_value_of_a_repeated_name_counts() -> None:
    assert read({}, {"dest": ["/a", "/b", None]}).dest_path == "/b"
