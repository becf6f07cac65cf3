"""Request fields of the calls for documents (Contract documents)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from queryserver.api.schemas.fields import (
    ConnectorReference,
    Fields,
    Flag,
    Integer,
    Json,
    Nested,
    OptionalText,
    PageSize,
    ShortArray,
    Text,
    any_of,
    decode_json_string,
    must,
    one_of,
    parse_json_text,
    requires,
    requires_text,
)
from queryserver.api.schemas.requests.editor import Snippet
from queryserver.documents.documents import DocumentChange
from queryserver.documents.model import Cursor, DocumentParameter, DocumentQuery, GrantChange, OwnerChange, Permission
from queryserver.errors.base import InvalidParameter, MissingParameter, conflicting_parameters
from queryserver.sql.parameters import ParameterType

MAX_LIMIT = 1000
MAX_VERSION = 2**31 - 1

DocumentId: TypeAlias = Annotated[
    Text, BeforeValidator(decode_json_string), Field(description="UUID of the document, plain or as a JSON string.")
]


_CURSOR = "[0-9]{1,17}-[0-9]{1,18}"


def _cursor(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(_CURSOR, text):
        raise must("be the `next_after` of a page.")
    return text


class DocumentListParameters(Fields):
    folder: Annotated[OptionalText, Field(description="Only documents in this folder, without its subfolders.")] = None
    tag: Annotated[OptionalText, Field(description="Only documents with this tag.")] = None
    text: Annotated[
        OptionalText, Field(description="Only documents whose name, description or statement contains this text.")
    ] = None
    owner: Annotated[OptionalText, Field(description="Only documents of the user with this name.")] = None
    type: Annotated[
        OptionalText, Field(description="Only documents of this type: `query-<dialect>`, a dialect, or `notebook`.")
    ] = None
    trash: Annotated[Flag, Field(description="List your documents in the trash.")] = False
    all: Annotated[Flag, Field(description="List the documents of all users; for administrators.")] = False
    limit: Annotated[int, PageSize(MAX_LIMIT), Field(description="Maximum number of documents on a page.")] = 100
    after: Annotated[
        OptionalText,
        AfterValidator(_cursor),
        Field(description="`next_after` of the previous page.", json_schema_extra={"pattern": rf"^(?:\s*|{_CURSOR})$"}),
    ] = None

    @property
    def query(self) -> DocumentQuery:
        """The documents to list. Raises InvalidParameter."""
        kind = self.type
        if kind is not None and kind != "notebook" and not kind.startswith("query-"):
            kind = f"query-{kind}"
        return DocumentQuery(
            folder=self.folder,
            tag=self.tag,
            text=self.text,
            owner=self.owner,
            type=kind,
            is_trashed=self.trash,
            of_all=self.all,
            after=None if self.after is None else Cursor.read(self.after),
            limit=self.limit,
        )


class DocumentParameterFields(Fields):
    """A parameter of a document's statement."""

    name: Text = Field(description="Name of the marker, without its colon.")
    type: Annotated[ParameterType | None, one_of(*ParameterType)] = Field(
        default=None, description="Type of plain values. By default, they keep their JSON type."
    )
    default: Any = Field(default=None, description="Value of runs that pass none. By default, each run must pass one.")

    @property
    def parameter(self) -> DocumentParameter:
        return DocumentParameter(self.name, self.type, self.default)


class DocumentFields(Fields):
    """A document to save. Absent members stay as they are."""

    uuid: OptionalText = Field(default=None, description="UUID of the document; by default a new one is created.")
    version: Annotated[int, Integer(0, MAX_VERSION)] | None = Field(
        default=None, description="Version that the save changes; required for an existing document."
    )
    name: Text | None = Field(default=None, description="Name, at most 255 characters.")
    description: Text | None = Field(default=None, description="Description, at most 5000 characters.")
    statement: Text | None = Field(default=None, description="Text of the statement or script.")
    parameters: ShortArray[tuple[Nested[DocumentParameterFields], ...]] | None = Field(
        default=None, description="Parameters of the statement."
    )
    connector: ConnectorReference | None = Field(
        default=None, description="Id, key or dialect of the connector; empty for none."
    )
    database: Text | None = Field(default=None, description="Current database of the statement; empty for none.")
    tags: ShortArray[tuple[Text, ...]] | None = Field(default=None, description="At most 20 tags.")
    folder: Text | None = Field(default=None, description="Folder, such as `/reports/daily`.")

    @property
    def change(self) -> DocumentChange:
        parameters = None if self.parameters is None else tuple(one.parameter for one in self.parameters)
        return DocumentChange(
            uuid=_uuid(self.uuid, "document.uuid"),
            version=self.version,
            name=self.name,
            description=self.description,
            statement=self.statement,
            parameters=parameters,
            connector=self.connector,
            database=self.database,
            tags=self.tags,
            folder=self.folder,
        )


class DocumentSnippet(Snippet):
    """A snippet of a notebook. Hue keeps the text with its variables in `statement_raw`."""

    statement_raw: OptionalText = Field(default=None, description="Text of the statement; takes precedence.")

    @property
    def text(self) -> str:
        return self.statement_raw or self.statement or ""


class DocumentNotebook(Fields):
    """A notebook, as create_notebook and get_document return it."""

    uuid: OptionalText = Field(default=None, description="UUID of the document; by default a new one is created.")
    version: Annotated[int, Integer(0, MAX_VERSION)] | None = Field(
        default=None, description="Version that the save changes; by default the stored one."
    )
    name: Text | None = Field(default=None, description="Name of the document.")
    description: Text | None = Field(default=None, description="Description of the document.")
    type: Text | None = Field(default=None, description="`query-<dialect>` names the connector if no snippet does.")
    snippets: ShortArray[tuple[Nested[DocumentSnippet], ...]] = Field(
        default=(), description="Snippets, of which at most one has a statement."
    )

    @property
    def change(self) -> DocumentChange:
        """What the notebook saves. Raises InvalidParameter if it has several statements."""
        snippets = [one for one in self.snippets if one.text] or list(self.snippets[:1])
        if len(snippets) > 1:
            raise InvalidParameter(
                f"notebook: has {len(snippets)} snippets with a statement. A document has one: save each as a document."
            )
        snippet = snippets[0] if snippets else None
        dialect = (self.type or "").removeprefix("query-")
        connector = snippet.dialect if snippet else None
        return DocumentChange(
            uuid=_uuid(self.uuid, "notebook.uuid"),
            version=self.version,
            name=self.name,
            description=self.description,
            statement=snippet.text if snippet else None,
            connector=connector or (None if dialect in {"", "notebook"} else dialect),
            database=snippet.database if snippet else None,
            replaces_any=True,
        )


def _uuid(text: str | None, name: str) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise InvalidParameter(f"{name} must be a UUID.") from None


class SaveDocumentRequest(Fields):
    """Fields of documents/save."""

    model_config = any_of(requires("document"), requires("notebook"), requires_text("operationId"))

    document: Json[DocumentFields] | None = Field(default=None, description="The document, as a JSON object.")
    notebook: Json[DocumentNotebook] | None = Field(
        default=None, description="A notebook in the form of Hue, as a JSON object, instead of `document`."
    )
    operation_id: OptionalText = Field(
        default=None,
        alias="operationId",
        description="`history_uuid` of a statement of yours. Its text, connector and database are saved, unless"
        " `document` has its own.",
    )

    @property
    def change(self) -> DocumentChange:
        """What to save. Raises MissingParameter, InvalidParameter, conflicting_parameters."""
        if self.notebook is not None:
            if self.document is not None or self.operation_id is not None:
                raise conflicting_parameters("notebook cannot be combined with document or operationId.")
            return self.notebook.change
        if self.document is None and self.operation_id is None:
            raise MissingParameter("document is required.")
        change = DocumentChange() if self.document is None else self.document.change
        return replace(change, operation_id=self.operation_id)


class DocumentIdRequest(Fields):
    """Fields of documents/restore."""

    uuid: DocumentId


class DeleteDocumentRequest(Fields):
    """Fields of documents/delete."""

    uuid: DocumentId
    skip_trash: Flag = Field(default=False, description="Delete the document for ever, with its versions and grants.")


class MoveDocumentRequest(Fields):
    """Fields of documents/move."""

    uuid: DocumentId
    folder: Text = Field(description="The new folder, such as `/reports/daily`.")


class RestoreVersionRequest(Fields):
    """Fields of documents/restore_version."""

    uuid: DocumentId
    restore: Annotated[int, Integer(1, MAX_VERSION)] = Field(description="Version whose content is saved again.")
    version: Annotated[int, Integer(1, MAX_VERSION)] = Field(description="Current version, which the save changes.")


class GrantFields(Fields):
    """A permission of a user, of a group, or of both."""

    model_config = any_of(requires_text("user"), requires_text("group"))

    user: OptionalText = Field(default=None, description="Name of a user.")
    group: OptionalText = Field(default=None, description="Name of a group.")
    permission: Literal["view", "run", "edit", "none"] = Field(
        description="`view`, `run`, `edit`, or `none` to revoke. Each includes the previous ones."
    )

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if self.user is None and self.group is None:
            raise must("name a user or a group.")
        return self

    @property
    def changes(self) -> Iterator[GrantChange]:
        permission = None if self.permission == "none" else Permission(self.permission)
        if self.user is not None:
            yield GrantChange(permission, user=self.user)
        if self.group is not None:
            yield GrantChange(permission, group=self.group)


class ShareDocumentRequest(Fields):
    """Fields of documents/share."""

    uuid: DocumentId
    grants: Annotated[ShortArray[tuple[Nested[GrantFields], ...]], BeforeValidator(parse_json_text)] = Field(
        description="Grants to set or to revoke, as a JSON array. Grants that are not named stay as they are."
    )


class ChangeOwnerRequest(Fields):
    """Fields of documents/change_owner."""

    model_config = any_of(requires_text("uuid"), requires_text("from_user"))

    to_user: Text = Field(description="Name of the new owner.")
    uuid: Annotated[OptionalText, BeforeValidator(decode_json_string)] = Field(
        default=None, description="UUID of the document, plain or as a JSON string."
    )
    from_user: OptionalText = Field(
        default=None, description="Instead of `uuid`: the user all of whose documents change, including the trash."
    )
    keep: Literal["view", "run", "edit", "none"] = Field(
        default="none", description="What the former owner may still do: `view`, `run`, `edit` or `none`."
    )

    @property
    def change(self) -> OwnerChange:
        """The documents and their new owner. Raises MissingParameter, conflicting_parameters."""
        if self.uuid is not None and self.from_user is not None:
            raise conflicting_parameters("uuid cannot be combined with from_user.")
        if self.uuid is None and self.from_user is None:
            raise MissingParameter("uuid or from_user is required.")
        keep = None if self.keep == "none" else Permission(self.keep)
        return OwnerChange(self.to_user, document=self.uuid, from_user=self.from_user, keep=keep)
