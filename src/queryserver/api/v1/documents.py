"""Calls for documents: saved queries, their versions and grants (Contract documents)."""

from typing import Annotated, Any

from fastapi import Response

from queryserver.api.dependencies import DocumentsDep, NoFields, QueryUser, ReadUser, fields
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import documents as requests
from queryserver.documents.model import Content, Document, DocumentParameter, DocumentVersion, Summary, VersionEntry
from queryserver.errors.base import document_version_not_found

router = PathGroup("documents", prefix="")  # full paths, because a call has an alias below `/notebook`


@router.get("/api/v1/documents", response_model=wire.DocumentListResponse, responses=failures(403))
async def list_documents(
    user: ReadUser,
    request: Annotated[requests.DocumentListParameters, fields(requests.DocumentListParameters)],
    documents: DocumentsDep,
) -> Response:
    """List your documents and those shared with you, last changed first, without their statements."""
    page = await documents.page(user, request.query)
    return json_response(
        wire.DocumentListResponse(
            documents=[_entry(one) for one in page.documents],
            next_after=str(page.next_after) if page.next_after else None,
            status=0,
        )
    )


@router.get("/api/v1/documents/{uuid:document}", response_model=wire.DocumentResponse, responses=failures(404))
async def get_document(uuid: str, user: ReadUser, _: NoFields, documents: DocumentsDep) -> Response:
    """Return a document, also as a notebook in the form of Hue."""
    return _response(await documents.get(user, uuid))


@router.get(
    "/api/v1/documents/{uuid:document}/versions",
    response_model=wire.DocumentVersionListResponse,
    responses=failures(404),
)
async def list_document_versions(uuid: str, user: ReadUser, _: NoFields, documents: DocumentsDep) -> Response:
    """List the current version and the former versions that are kept, newest first, without their statements."""
    versions = [
        wire.DocumentVersionEntry(version=one.version, name=one.name, modified=_time(one), modified_by=one.modified_by)
        for one in await documents.versions(user, uuid)
    ]
    return json_response(wire.DocumentVersionListResponse(versions=versions, status=0))


@router.get(
    "/api/v1/documents/{uuid:document}/versions/{version:name}",
    response_model=wire.DocumentVersionResponse,
    responses=failures(404),
)
async def get_document_version(
    uuid: str, version: str, user: ReadUser, _: NoFields, documents: DocumentsDep
) -> Response:
    """Return the content of a version."""
    number = int(version) if version.isascii() and version.isdecimal() and len(version) < 10 else 0
    if not number:
        raise document_version_not_found(version[:20])
    document, found = await documents.version(user, uuid, number)
    shown = wire.DocumentVersion(
        uuid=str(document.uuid),
        version=found.version,
        modified=_time(found),
        modified_by=found.modified_by,
        **_content(found.content),
    )
    return json_response(wire.DocumentVersionResponse(version=shown, status=0))


@router.post("/notebook/api/notebook/save", include_in_schema=False)
@router.post("/api/v1/documents/save", response_model=wire.DocumentSaveResponse, responses=failures(403, 404, 409))
async def save_document(
    user: QueryUser,
    request: Annotated[requests.SaveDocumentRequest, fields(requests.SaveDocumentRequest)],
    documents: DocumentsDep,
) -> Response:
    """Create a document, or save a new version of it; the former version is kept.

    A save names the version that it changes. If another one is stored, nothing is saved (409 `version_conflict`).
    """
    saved = await documents.save(user, request.change)
    document = saved.document
    return json_response(
        wire.DocumentSaveResponse(
            document=_document(document),
            id=document.id,
            uuid=str(document.uuid),
            name=document.content.name,
            type=document.content.type,
            save_as=saved.is_new,
            message="Query saved successfully.",
            status=0,
        )
    )


@router.post("/api/v1/documents/delete", response_model=wire.DocumentDeleteResponse, responses=failures(403, 404))
async def delete_document(
    user: QueryUser,
    request: Annotated[requests.DeleteDocumentRequest, fields(requests.DeleteDocumentRequest)],
    documents: DocumentsDep,
) -> Response:
    """Move a document to the trash, or delete it for ever."""
    await documents.delete(user, request.uuid, skips_trash=request.skip_trash)
    return json_response(wire.DocumentDeleteResponse(uuid=request.uuid, status=0))


@router.post("/api/v1/documents/restore", response_model=wire.DocumentResponse, responses=failures(403, 404))
async def restore_document(
    user: QueryUser,
    request: Annotated[requests.DocumentIdRequest, fields(requests.DocumentIdRequest)],
    documents: DocumentsDep,
) -> Response:
    """Take a document out of the trash."""
    return _response(await documents.restore(user, request.uuid))


@router.post("/api/v1/documents/move", response_model=wire.DocumentResponse, responses=failures(403, 404, 409))
async def move_document(
    user: QueryUser,
    request: Annotated[requests.MoveDocumentRequest, fields(requests.MoveDocumentRequest)],
    documents: DocumentsDep,
) -> Response:
    """Move a document to another folder. Folders exist as long as documents are in them."""
    return _response(await documents.move(user, request.uuid, request.folder))


@router.post("/api/v1/documents/share", response_model=wire.DocumentResponse, responses=failures(403, 404, 409))
async def share_document(
    user: QueryUser,
    request: Annotated[requests.ShareDocumentRequest, fields(requests.ShareDocumentRequest)],
    documents: DocumentsDep,
) -> Response:
    """Grant users and groups a permission for a document, or revoke it. Takes effect with their next call."""
    return _response(
        await documents.share(user, request.uuid, [change for one in request.grants for change in one.changes])
    )


@router.post(
    "/api/v1/documents/change_owner", response_model=wire.DocumentOwnerResponse, responses=failures(403, 404, 409)
)
async def change_document_owner(
    user: QueryUser,
    request: Annotated[requests.ChangeOwnerRequest, fields(requests.ChangeOwnerRequest)],
    documents: DocumentsDep,
) -> Response:
    """Give one document, or all documents of a user, to another user.

    Owners may give away their own documents, administrators those of all users.
    """
    return json_response(
        wire.DocumentOwnerResponse(changed=await documents.change_owner(user, request.change), status=0)
    )


@router.post(
    "/api/v1/documents/restore_version", response_model=wire.DocumentResponse, responses=failures(403, 404, 409)
)
async def restore_document_version(
    user: QueryUser,
    request: Annotated[requests.RestoreVersionRequest, fields(requests.RestoreVersionRequest)],
    documents: DocumentsDep,
) -> Response:
    """Save the content of a former version as a new version."""
    return _response(await documents.restore_version(user, request.uuid, request.restore, version=request.version))


def _response(document: Document) -> Response:
    return json_response(wire.DocumentResponse(document=_document(document), data=_notebook(document), status=0))


def _document(document: Document) -> wire.Document:
    return wire.Document(
        **_facts(document),
        **_content(document.content),
        grants=[
            wire.DocumentGrant(user=one.user, group=one.group, permission=one.permission.value)
            for one in document.grants
        ],
    )


def _entry(document: Summary) -> wire.DocumentEntry:
    same = ("name", "type", "description", "connector", "dialect", "database")
    return wire.DocumentEntry(
        **_facts(document), tags=list(document.tags), **{name: getattr(document, name) for name in same}
    )


def _facts(document: Document | Summary) -> dict[str, Any]:
    """Return the keys of a document that are not content."""
    modified = utc_text(document.modified) or ""
    return {
        "id": document.id,
        "uuid": str(document.uuid),
        "owner": document.owner,
        "folder": document.folder,
        "version": document.version,
        "created": utc_text(document.created) or "",
        "modified": modified,
        "last_modified": modified,
        "modified_by": document.modified_by,
        "permission": document.permission.value,
        "is_trashed": document.is_trashed,
        "absoluteUrl": f"/editor?editor={document.uuid}",
    }


def _content(content: Content) -> dict[str, Any]:
    same = ("name", "type", "description", "statement", "connector", "dialect", "database")
    return {
        **{name: getattr(content, name) for name in same},
        "tags": list(content.tags),
        "parameters": [_parameter(one) for one in content.parameters],
    }


def _parameter(parameter: DocumentParameter) -> wire.DocumentParameter:
    return model_from(wire.DocumentParameter, parameter, type=parameter.type.value if parameter.type else None)


def _notebook(document: Document) -> wire.SavedNotebook:
    """Return the document as a notebook that save_document accepts as it is."""
    content, snippets = document.content, list[wire.SavedSnippet]()
    key = content.connector
    if content.statement or key:
        snippets.append(
            wire.SavedSnippet(
                id=str(document.uuid),
                type=content.dialect or "",
                connector=wire.SavedConnector(id=key, type=key, dialect=content.dialect) if key else None,
                statement=content.statement,
                statement_raw=content.statement,
                database=content.database or "",
                status="ready",
                properties={},
            )
        )
    return wire.SavedNotebook(
        id=document.id,
        uuid=str(document.uuid),
        name=content.name,
        description=content.description,
        type=content.type,
        version=document.version,
        isSaved=True,
        isManaged=False,
        skipHistorify=False,
        sessions=[],
        snippets=snippets,
        directoryUuid=None,
    )


def _time(version: DocumentVersion | VersionEntry) -> str:
    return utc_text(version.modified) or ""
