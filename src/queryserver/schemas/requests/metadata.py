"""Fields of the metadata calls, of explain and of format (Contract editor 8.3, 8.4, 10)."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from queryserver.schemas.fields import Flag, Json, Name, Text, TextOrNothing, Whole
from queryserver.schemas.requests.statements import BigNumbersField
from queryserver.schemas.snippets import Fields, Snippet, SnippetConnector

_PAGE_MAX = 10**6


class MetadataRequest(Fields):
    """What every metadata call may say: the connector, and whether kept answers will do."""

    snippet: Json[Snippet] = Snippet()
    refresh: Flag = Field(default=False, description="Ask the data source anew instead of the cache.")


class AutocompleteRequest(MetadataRequest):
    """Fields of autocomplete (Contract editor 10.1, 10.2). `prefix`, `page` and `limit` are for lists."""

    operation: Literal["schema", "functions", "function"] = "schema"
    prefix: Text = Field(default="", description="Only names that begin so, without regard to case.")
    page: Annotated[int, Whole(1, _PAGE_MAX)] = 1
    limit: Annotated[int, Whole(1)] | None = Field(default=None, description="Names per page.")


def _word(value: Any) -> Any:
    """`distinct` and `"distinct"` are one word."""
    if isinstance(value, str) and value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


class SampleRequest(MetadataRequest):
    """Fields of sample (Contract editor 10.3). Without `escape` the settings decide; `timeout` is for `async`."""

    operation: Annotated[Literal["default", "distinct", "max", "min", "hello"], BeforeValidator(_word)] = "default"
    is_async: Flag = Field(default=False, alias="async")
    escape: Flag | None = None
    big_numbers: BigNumbersField = None
    timeout: Annotated[int, Whole(1, 86400)] | None = None


class DescribeRequest(Fields):
    """Fields of describe (Contract editor 10.4)."""

    source_type: Name | None = None
    connector: Json[SnippetConnector] | None = None
    refresh: Flag = Field(default=False, description="Ask the data source anew instead of the cache.")

    @property
    def chosen(self) -> str | None:
        """What names the connector: `connector` overrides `source_type`."""
        return (self.connector and (self.connector.type or self.connector.id)) or self.source_type


class ExplainRequest(Fields):
    """Fields of explain (Contract editor 8.3)."""

    statement: TextOrNothing = None
    database: TextOrNothing = None
    session_id: Annotated[int, Whole()] | None = None
    snippet: Json[Snippet] = Snippet()

    @property
    def script(self) -> str | None:
        """The script as sent."""
        return self.statement or self.snippet.statement

    @property
    def current_database(self) -> str | None:
        """None: the connector's default."""
        return self.database or self.snippet.database


class FormatRequest(Fields):
    """Fields of format (Contract editor 8.4)."""

    statements: TextOrNothing = None
    statement: TextOrNothing = None
    dialect: TextOrNothing = None

    @property
    def script(self) -> str | None:
        """The script as sent."""
        return self.statements or self.statement
