"""Requests for metadata; each starts an operation whose rows are fetched like those of a statement."""

from queryserver.engines.hiveserver2.protocol.calls import SESSION
from queryserver.engines.hiveserver2.protocol.declaring import TEXT, Struct, list_of, struct, wire
from queryserver.engines.hiveserver2.protocol.status import TSessionHandle


@struct
class TSessionReq(Struct):
    """The request of GetTypeInfo, GetCatalogs and GetTableTypes."""

    session_handle: TSessionHandle = wire(1, SESSION)


@struct
class TGetSchemasReq(Struct):
    """In names `_` and `%` are wild, `\\` escapes."""

    session_handle: TSessionHandle = wire(1, SESSION)
    catalog_name: str | None = wire(2, TEXT, default=None)
    schema_name: str | None = wire(3, TEXT, default=None)


@struct
class TGetTablesReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)
    catalog_name: str | None = wire(2, TEXT, default=None)
    schema_name: str | None = wire(3, TEXT, default=None)
    table_name: str | None = wire(4, TEXT, default=None)
    table_types: list[str] | None = wire(5, list_of(TEXT), default=None)


@struct
class TGetColumnsReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)
    catalog_name: str | None = wire(2, TEXT, default=None)
    schema_name: str | None = wire(3, TEXT, default=None)
    table_name: str | None = wire(4, TEXT, default=None)
    column_name: str | None = wire(5, TEXT, default=None)


@struct
class TGetFunctionsReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)
    catalog_name: str | None = wire(2, TEXT, default=None)
    schema_name: str | None = wire(3, TEXT, default=None)
    function_name: str = wire(4, TEXT)


@struct
class TGetPrimaryKeysReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)
    catalog_name: str | None = wire(2, TEXT, default=None)
    schema_name: str | None = wire(3, TEXT, default=None)
    table_name: str | None = wire(4, TEXT, default=None)


@struct
class TGetCrossReferenceReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)
    parent_catalog_name: str | None = wire(2, TEXT, default=None)
    parent_schema_name: str | None = wire(3, TEXT, default=None)
    parent_table_name: str | None = wire(4, TEXT, default=None)
    foreign_catalog_name: str | None = wire(5, TEXT, default=None)
    foreign_schema_name: str | None = wire(6, TEXT, default=None)
    foreign_table_name: str | None = wire(7, TEXT, default=None)
