"""The objects `snippet`, `notebook` and `session` of requests in the full form (Contract editor 2.3, 9.1)."""

import json
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator

from queryserver.api.schemas.fields import Few, Flag, Name, Nested, Text, TextOrNothing, Whole, is_clean, must

_MAX_KEPT_VALUES = 10_000
_PASSWORDS = ("password", "passwd", "pwd")
_STEERING = frozenset({"statement_id", "statements_count", "has_more_statements", "previous_statement_hash"})


class Fields(BaseModel):
    """Fields of one call or of one object in it; unknown ones are ignored (Contract editor 1.2)."""

    model_config = ConfigDict(frozen=True)


class PreviousHandle(Fields):
    """The handle of the statement before, as the client holds it (Contract editor 5.3)."""

    statement_id: Annotated[int, Whole(0)] = 0
    statements_count: Annotated[int, Whole(0)] = 0
    has_more_statements: Flag = False
    previous_statement_hash: Text = ""
    guid: TextOrNothing = None

    @property
    def steers(self) -> bool:
        """Whether any of the four members came that choose the next statement."""
        return not _STEERING.isdisjoint(self.model_fields_set)


class SnippetResult(Fields):
    """The part of a snippet that names an operation."""

    handle: Nested[PreviousHandle] | None = None


class SnippetConnector(Fields):
    """A connector, named by its key or id."""

    type: Name | None = None
    id: Name | None = None


def _setting_value(value: Any) -> str:
    """Engines take settings as text; JSON scalars are written as JSON writes them."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str) or not is_clean(value):
        raise must("be text, a number or a boolean.")
    return value


class Setting(Fields):
    """One engine setting; the connector's allow list decides about it."""

    key: Text
    value: Annotated[str, BeforeValidator(_setting_value)]


class SnippetProperties(Fields):
    """Properties of a snippet that reach the engine."""

    settings: Few[tuple[Nested[Setting], ...]] = ()


class Snippet(Fields):
    """A statement in the full form."""

    type: Text | None = None
    connector: Nested[SnippetConnector] | None = None
    statement: TextOrNothing = None
    database: TextOrNothing = None
    properties: Nested[SnippetProperties] = SnippetProperties()
    result: Nested[SnippetResult] = SnippetResult()

    @property
    def dialect(self) -> str | None:
        """What names the connector: `connector` overrides `type` (Contract editor 1.7)."""
        chosen = self.connector and (self.connector.type or self.connector.id)
        return chosen or self.type or None

    @property
    def guid(self) -> str | None:
        """The token that names an operation in the full form."""
        return self.result.handle.guid if self.result.handle else None


class NotebookSession(Fields):
    """A session that the notebook holds for one dialect."""

    type: Text | None = None
    id: Annotated[int, Whole()] | None = None


class NotebookFields(Fields):
    """The notebook around a snippet."""

    type: Text | None = None
    uuid: TextOrNothing = None
    is_saved: Flag = Field(default=False, alias="isSaved")
    skip_historify: Flag = Field(default=False, alias="skipHistorify")
    parent_saved_query_uuid: TextOrNothing = Field(default=None, alias="parentSavedQueryUuid")
    sessions: Few[tuple[Nested[NotebookSession], ...]] = ()

    @property
    def hides_history(self) -> bool:
        """Whether its operations stay out of get_history (Contract editor 4.1)."""
        return self.skip_historify or self.type == "notebook"

    @property
    def saved_uuid(self) -> str | None:
        """The `history_parent_uuid` of its operations; None unless the notebook is saved."""
        return (self.parent_saved_query_uuid or self.uuid) if self.is_saved else None

    def session_of(self, names: Collection[str]) -> int | None:
        """The session for a connector that goes by one of `names`; names are compared without regard to case."""
        wanted = {name.casefold() for name in names}
        return next(
            (one.id for one in self.sessions if one.id is not None and (one.type or "").casefold() in wanted), None
        )


def _clean_tree(properties: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is kept and given back must be storable as JSON; walks without recursion."""
    left: list[Any] = list(properties)
    seen = 0
    while left:
        seen += 1
        if seen > _MAX_KEPT_VALUES:
            raise must(f"hold at most {_MAX_KEPT_VALUES} values.")
        match left.pop():
            case str(text) if not is_clean(text):
                raise must("be free of U+0000 and of lone surrogates.")
            case float(number) if not isfinite(number):
                raise must("hold finite numbers only.")
            case dict(members):
                left += [*members.keys(), *members.values()]
            case list(elements):
                left += elements
            case _:
                pass
    return properties


def _is_password(one: Mapping[str, Any]) -> bool:
    """Whether a property is a password by its name or key, in any spelling."""
    names = [str(one.get(member, "")).casefold() for member in ("name", "key")]
    return any(word in name for name in names for word in _PASSWORDS)


class SessionSpec(Fields):
    """A session as create_session and close_session take it."""

    type: TextOrNothing = None
    id: Annotated[int, Whole()] | None = None
    properties: Annotated[Few[list[dict[str, Any]]], AfterValidator(_clean_tree)] = []

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User name and password for the data source, when one of them came."""
        user, password = self._credential("user"), self._credential("password")
        return None if user is None and password is None else (user or "", password or "")

    @property
    def settings(self) -> dict[str, str]:
        """Engine settings; the connector's allow list decides about them."""
        given = self._value("key", "settings") or []
        return {setting.key: setting.value for setting in _SETTINGS.validate_python(given)}

    @property
    def shown_properties(self) -> list[dict[str, Any]]:
        """The properties as given, with empty passwords."""
        return [{**one, "value": ""} if _is_password(one) else one for one in self.properties]

    def _credential(self, name: str) -> str | None:
        value = self._value("name", name)
        if value is not None and not isinstance(value, str):
            raise must("hold user and password as text.")
        return value

    def _value(self, member: str, name: str) -> Any:
        return next((one.get("value") for one in self.properties if one.get(member) == name), None)

    @model_validator(mode="after")
    def _values_have_their_types(self) -> Self:
        """Read once here, so that the properties above cannot fail later."""
        _ = self.credentials, self.settings
        return self


_SETTINGS = TypeAdapter(Few[list[Nested[Setting]]])
