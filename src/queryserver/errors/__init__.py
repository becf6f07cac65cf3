"""The errors of this service. Only `api/errors.py` defines HTTP statuses and bodies.

The package has three modules: `base` (callers, requests, limits, the service itself), `statements` (statements,
dialects, connectors, metadata, search) and `files` (storage and imports).

A failure has its own class if code must distinguish it: because it is caught, has its own status, or carries values.
Every other failure is an `ErrorKind`: an error code applied to one of these classes. For example,
`raise same_path("…")` raises an `InvalidRequest` whose `code` is `same_path`. A kind may have a message template:
`raise database_not_found("shop")`.

QueryServerError
├─ NotAuthenticated ── InvalidToken, AuthenticationFailed, UserNotFound (IdentityRefused), UserInactive,
│                      IssuerLoginRefused
├─ PermissionDenied ── InsufficientScope, SymlinkNotFollowed, ImpersonationNotAllowed, ImporterDenied, CatalogDenied,
│                      EngineJwtRequired
├─ InvalidRequest ──── MissingParameter, InvalidParameter (UnreadableParameter), InvalidJson, LateBody, InvalidFields,
│                      TooComplex, InvalidUsername, InvalidPassword, ConnectorRefused,
│                      InvalidPath, InvalidName, NotADirectory, NotAFile, TargetInsideSource,
│                      UnknownScheme, UnknownAuthority, StorageNotConfigured,
│                      FileCorrupt, FileTooComplex, UnsupportedFormat
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
├─ ServiceUnavailable  DatabaseUnavailable, LoginBackendUnavailable, KeyServerUnavailable, IssuerUnavailable,
│                      CatalogUnavailable (CatalogUnreachable)
└─ DetectionFailed, SchemaMismatch, ConfigurationError
"""

from queryserver.errors.base import *  # noqa: F403 tests/openapi/test_codes.py: no name is defined twice
from queryserver.errors.files import *  # noqa: F403 tests/openapi/test_codes.py: no name is defined twice
from queryserver.errors.statements import *  # noqa: F403 tests/openapi/test_codes.py: no name is defined twice
