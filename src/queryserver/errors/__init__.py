"""The errors of this service. HTTP statuses and bodies are in `api/errors.py`, nowhere else.

Three modules: `base` (callers, requests, limits, the service), `statements` (statements, dialects, connectors,
metadata, search), `files` (storage and imports).

A class exists where code must distinguish the failure: it is caught, has a status of its own, or carries values.
Every other failure is an `ErrorKind`, a code of one of these classes: `raise same_path("…")` raises an
`InvalidRequest` whose `code` is `same_path`; a `FixedError` also has its message: `raise database_not_found("shop")`.

QueryServerError
├─ NotAuthenticated ── InvalidToken, AuthenticationFailed, UserNotFound (IdentityRefused), UserInactive
├─ PermissionDenied ── InsufficientScope, SymlinkNotFollowed, ImpersonationNotAllowed, ImporterDenied, CatalogDenied,
│                      EngineJwtRequired
├─ InvalidRequest ──── MissingParameter, InvalidParameter, InvalidJson, LateBody, InvalidFields, TooComplex,
│                      InvalidUsername, InvalidPassword, ConnectorRefused,
│                      InvalidPath, InvalidName, NotADirectory, NotAFile, UnknownScheme, …, FileCorrupt
├─ PayloadTooLarge ─── PageRowTooLarge, DecompressionLimit
├─ UnsupportedMediaType, RangeNotSatisfiable, BodyTooSlow
├─ VerificationFailed  DecompressionFailed
├─ NotFound ────────── OperationNotFound, UnknownDialect, UnknownGroup, ConnectorTypeNotFound, PathNotFound,
│                      UploadNotFound, MetadataNotFound (TableNotFound)
├─ Conflict ────────── NameTaken, VersionConflict, NoMoreStatements, DownloadRefused, PathExists,
│                      AmbiguousName, DirectoryNotEmpty, EntryChanged, OperationInProgress, StoreQuotaExceeded
├─ TooManyRequests ─── TooManyStreams, LoginThrottled
├─ NotSupported ────── CodecNotAvailable, DriverNotInstalled, SourceNotConfigured
├─ EngineError ─────── StatementRejected (StatementDenied), EngineForbidden, EngineUnavailable, EngineTimeout,
│                      SessionLost, OutcomeUnknown, CredentialsRequired, ResultRefused, RowTooLarge
├─ StorageError ────── StorageUnavailable, InsufficientStorage
├─ ServiceUnavailable  DatabaseUnavailable, LoginBackendUnavailable, KeyServerUnavailable,
│                      CatalogUnavailable (CatalogUnreachable)
└─ DetectionFailed, SchemaMismatch, ConfigurationError
"""

from queryserver.errors.base import *  # noqa: F403 this package shows all names of its three chapters
from queryserver.errors.files import *  # noqa: F403 this package shows all names of its three chapters
from queryserver.errors.statements import *  # noqa: F403 this package shows all names of its three chapters
