"""Fields of the connector calls (Contract platform 5)."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from queryserver.schemas.fields import Few, Json, Nested, Text, Whole, must
from queryserver.schemas.snippets import Fields


def _id(value: Any) -> str | None:
    """Empty and 0 name no instance."""
    if type(value) is int:
        return str(value) if value else None
    if not isinstance(value, str):
        raise must("be text or an integer.")
    return None if value.strip() in {"", "0"} else value.strip()


class ConnectorSettingFields(Fields):
    """One setting; its type decides what the value may be."""

    name: Text
    value: Any = None


class ConnectorFields(Fields):
    """A connector as an administrator sends it."""

    id: Annotated[str | None, BeforeValidator(_id)] = None
    nice_name: Text | None = None
    dialect: Text | None = None
    interface: Text | None = None
    description: Text | None = Field(default=None, description="Text about it, at most 1000 characters.")
    settings: Few[tuple[Nested[ConnectorSettingFields], ...]] | None = None
    groups: Few[tuple[Text, ...]] | None = None
    version: Annotated[int, Whole(0)] | None = Field(
        default=None, description="The version that is changed; another one than the stored is refused."
    )

    @property
    def setting_values(self) -> dict[str, Any] | None:
        """Names to values; of a repeated name the last one counts."""
        return None if self.settings is None else {one.name: one.value for one in self.settings}


class ConnectorIdFields(Fields):
    """A connector of which nothing but the id counts."""

    id: Annotated[str | None, BeforeValidator(_id)] = None


class ConnectorIdRequest(Fields):
    """What delete reads of a ConnectorRequest."""

    connector: Json[ConnectorIdFields]


class ConnectorRequest(Fields):
    """Fields of update, delete and test."""

    connector: Json[ConnectorFields]


class NewConnectorRequest(Fields):
    """Fields of new."""

    connector: Json[ConnectorFields] = ConnectorFields()
