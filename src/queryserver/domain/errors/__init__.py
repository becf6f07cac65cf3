"""The error tree. Status codes and bodies live in `api/errors.py`, nowhere else.

QueryServerError
├─ NotAuthenticated ── InvalidToken, AuthenticationFailed
├─ PermissionDenied ── AdminRequired, DownloadDisabled, StorageAccessDenied, SymlinkNotFollowed, …
├─ InvalidRequest ──── MissingParameter, InvalidParameter, InvalidJson, InvalidBody, ConflictingParameters,
│                      InvalidUsername, InvalidPassword, InvalidRight, InvalidGroupName, TooComplex,
│                      InvalidPath, InvalidName, NotADirectory, NotAFile, …,
│                      those of imports (ImportFileNotFound, UnsupportedFormat, TableExists, …)
├─ PayloadTooLarge ─── PageRowTooLarge, FileTooLarge, TooManyEntries, TooManyParts, DecompressionLimit
├─ UnsupportedMediaType, RangeNotSatisfiable, BodyTooSlow
├─ Unprocessable ───── VerificationFailed, NotText, DecompressionFailed
├─ NotFound ────────── OperationNotFound, UnknownDialect, SessionNotFound, PathNotFound, UnknownUser, UnknownGroup,
│                      MetadataNotFound (DatabaseNotFound, TableNotFound, ColumnNotFound, NestedPathNotFound,
│                      FunctionNotFound)
├─ Conflict ────────── IdempotencyConflict, PreviousNotFinished, NoMoreStatements, PathExists, DirectoryNotEmpty,
│                      UsernameTaken, IdentityTaken, GroupExists, DefaultGroupKept, LastAdministrator,
│                      StatementTextExpired
├─ TooManyRequests ─── TooManyConnections, TooManyStatements, TooManyStreams, TooManySessions, QuotaExceeded,
│                      LoginThrottled
├─ NotSupported ────── TrashNotSupported, CodecNotAvailable
│  (those of connectors, search and identity are in `platform.py`, each below one of these)
├─ EngineError ─────── StatementRejected (StatementDenied), RejectedByRule, EngineUnavailable, EngineTimeout,
│                      SessionLost, OutcomeUnknown, CredentialsRequired, EngineForbidden, CellTooLarge,
│                      RowTooLarge, DiskBelowFloor, ResultStoreFailed
├─ StorageError ────── StorageUnavailable, StorageFull (InsufficientStorage)
├─ DetectionFailed
└─ ServiceUnavailable  DatabaseUnavailable, LoginBackendUnavailable, Stopping
"""

from queryserver.domain.errors.access import AdminRequired as AdminRequired
from queryserver.domain.errors.access import AuthenticationFailed as AuthenticationFailed
from queryserver.domain.errors.access import BadAuthorizationHeader as BadAuthorizationHeader
from queryserver.domain.errors.access import DownloadDisabled as DownloadDisabled
from queryserver.domain.errors.access import IdentityRefused as IdentityRefused
from queryserver.domain.errors.access import InvalidToken as InvalidToken
from queryserver.domain.errors.access import NotAuthenticated as NotAuthenticated
from queryserver.domain.errors.access import PermissionDenied as PermissionDenied
from queryserver.domain.errors.access import UserInactive as UserInactive
from queryserver.domain.errors.access import UserNotFound as UserNotFound
from queryserver.domain.errors.base import QueryServerError as QueryServerError
from queryserver.domain.errors.base import configured as configured
from queryserver.domain.errors.calls import ConflictingParameters as ConflictingParameters
from queryserver.domain.errors.calls import InvalidBody as InvalidBody
from queryserver.domain.errors.calls import InvalidFields as InvalidFields
from queryserver.domain.errors.calls import InvalidGroupName as InvalidGroupName
from queryserver.domain.errors.calls import InvalidHost as InvalidHost
from queryserver.domain.errors.calls import InvalidJson as InvalidJson
from queryserver.domain.errors.calls import InvalidParameter as InvalidParameter
from queryserver.domain.errors.calls import InvalidPassword as InvalidPassword
from queryserver.domain.errors.calls import InvalidRequest as InvalidRequest
from queryserver.domain.errors.calls import InvalidRight as InvalidRight
from queryserver.domain.errors.calls import InvalidUsername as InvalidUsername
from queryserver.domain.errors.calls import LateBody as LateBody
from queryserver.domain.errors.calls import MissingParameter as MissingParameter
from queryserver.domain.errors.calls import NotSupported as NotSupported
from queryserver.domain.errors.calls import PageRowTooLarge as PageRowTooLarge
from queryserver.domain.errors.calls import PayloadTooLarge as PayloadTooLarge
from queryserver.domain.errors.calls import TooComplex as TooComplex
from queryserver.domain.errors.calls import UnreadableParameter as UnreadableParameter
from queryserver.domain.errors.calls import UnsupportedMediaType as UnsupportedMediaType
from queryserver.domain.errors.engines import CellTooLarge as CellTooLarge
from queryserver.domain.errors.engines import CredentialsRequired as CredentialsRequired
from queryserver.domain.errors.engines import DiskBelowFloor as DiskBelowFloor
from queryserver.domain.errors.engines import EngineError as EngineError
from queryserver.domain.errors.engines import EngineForbidden as EngineForbidden
from queryserver.domain.errors.engines import EngineTimeout as EngineTimeout
from queryserver.domain.errors.engines import EngineUnavailable as EngineUnavailable
from queryserver.domain.errors.engines import OutcomeUnknown as OutcomeUnknown
from queryserver.domain.errors.engines import RejectedByRule as RejectedByRule
from queryserver.domain.errors.engines import ResultStoreFailed as ResultStoreFailed
from queryserver.domain.errors.engines import RowTooLarge as RowTooLarge
from queryserver.domain.errors.engines import SessionLost as SessionLost
from queryserver.domain.errors.engines import StatementDenied as StatementDenied
from queryserver.domain.errors.engines import StatementRejected as StatementRejected
from queryserver.domain.errors.files import AlreadyInTrash as AlreadyInTrash
from queryserver.domain.errors.files import BodyTooSlow as BodyTooSlow
from queryserver.domain.errors.files import BucketListingDenied as BucketListingDenied
from queryserver.domain.errors.files import ChangedMeanwhile as ChangedMeanwhile
from queryserver.domain.errors.files import CodecNotAvailable as CodecNotAvailable
from queryserver.domain.errors.files import ContainsTrash as ContainsTrash
from queryserver.domain.errors.files import DecompressionFailed as DecompressionFailed
from queryserver.domain.errors.files import DecompressionLimit as DecompressionLimit
from queryserver.domain.errors.files import DirectoryNotEmpty as DirectoryNotEmpty
from queryserver.domain.errors.files import ExtensionNotPermitted as ExtensionNotPermitted
from queryserver.domain.errors.files import ExtensionRestricted as ExtensionRestricted
from queryserver.domain.errors.files import FileTooLarge as FileTooLarge
from queryserver.domain.errors.files import ImpersonationNotAllowed as ImpersonationNotAllowed
from queryserver.domain.errors.files import InsufficientStorage as InsufficientStorage
from queryserver.domain.errors.files import InvalidName as InvalidName
from queryserver.domain.errors.files import InvalidPath as InvalidPath
from queryserver.domain.errors.files import NotADirectory as NotADirectory
from queryserver.domain.errors.files import NotAFile as NotAFile
from queryserver.domain.errors.files import NotInTrash as NotInTrash
from queryserver.domain.errors.files import NotText as NotText
from queryserver.domain.errors.files import OperationInProgress as OperationInProgress
from queryserver.domain.errors.files import PageNotFound as PageNotFound
from queryserver.domain.errors.files import PartConflict as PartConflict
from queryserver.domain.errors.files import PathExists as PathExists
from queryserver.domain.errors.files import PathNotFound as PathNotFound
from queryserver.domain.errors.files import RangeNotSatisfiable as RangeNotSatisfiable
from queryserver.domain.errors.files import RootNotAllowed as RootNotAllowed
from queryserver.domain.errors.files import SamePath as SamePath
from queryserver.domain.errors.files import StorageAccessDenied as StorageAccessDenied
from queryserver.domain.errors.files import StorageFull as StorageFull
from queryserver.domain.errors.files import StorageNotConfigured as StorageNotConfigured
from queryserver.domain.errors.files import StorageUnavailable as StorageUnavailable
from queryserver.domain.errors.files import StoreQuotaExceeded as StoreQuotaExceeded
from queryserver.domain.errors.files import SymlinkNotFollowed as SymlinkNotFollowed
from queryserver.domain.errors.files import TargetInsideSource as TargetInsideSource
from queryserver.domain.errors.files import TooManyEntries as TooManyEntries
from queryserver.domain.errors.files import TooManyParts as TooManyParts
from queryserver.domain.errors.files import TrashNotSupported as TrashNotSupported
from queryserver.domain.errors.files import UnknownAuthority as UnknownAuthority
from queryserver.domain.errors.files import UnknownScheme as UnknownScheme
from queryserver.domain.errors.files import Unprocessable as Unprocessable
from queryserver.domain.errors.files import UploadAborted as UploadAborted
from queryserver.domain.errors.files import UploadDisabled as UploadDisabled
from queryserver.domain.errors.files import UploadIncomplete as UploadIncomplete
from queryserver.domain.errors.files import UploadNotFound as UploadNotFound
from queryserver.domain.errors.files import VerificationFailed as VerificationFailed
from queryserver.domain.errors.imports import DetectionFailed as DetectionFailed
from queryserver.domain.errors.imports import EncodingFailed as EncodingFailed
from queryserver.domain.errors.imports import ExtensionNotAllowed as ExtensionNotAllowed
from queryserver.domain.errors.imports import FileCorrupt as FileCorrupt
from queryserver.domain.errors.imports import FileEmpty as FileEmpty
from queryserver.domain.errors.imports import FileEncrypted as FileEncrypted
from queryserver.domain.errors.imports import FileTooComplex as FileTooComplex
from queryserver.domain.errors.imports import FormatMismatch as FormatMismatch
from queryserver.domain.errors.imports import ImportConnectorNotFound as ImportConnectorNotFound
from queryserver.domain.errors.imports import ImporterDenied as ImporterDenied
from queryserver.domain.errors.imports import ImportFileDenied as ImportFileDenied
from queryserver.domain.errors.imports import ImportFileNotFound as ImportFileNotFound
from queryserver.domain.errors.imports import ImportFileTooLarge as ImportFileTooLarge
from queryserver.domain.errors.imports import ImportTargetDenied as ImportTargetDenied
from queryserver.domain.errors.imports import InvalidColumns as InvalidColumns
from queryserver.domain.errors.imports import InvalidDialect as InvalidDialect
from queryserver.domain.errors.imports import NotMultipart as NotMultipart
from queryserver.domain.errors.imports import RecordTooLong as RecordTooLong
from queryserver.domain.errors.imports import ReplacingNotSupported as ReplacingNotSupported
from queryserver.domain.errors.imports import SeparatorRequired as SeparatorRequired
from queryserver.domain.errors.imports import SheetNotFound as SheetNotFound
from queryserver.domain.errors.imports import SheetRequired as SheetRequired
from queryserver.domain.errors.imports import TableExists as TableExists
from queryserver.domain.errors.imports import TooManyColumns as TooManyColumns
from queryserver.domain.errors.imports import UnsupportedFormat as UnsupportedFormat
from queryserver.domain.errors.imports import UploadQuotaExceeded as UploadQuotaExceeded
from queryserver.domain.errors.limits import LoginThrottled as LoginThrottled
from queryserver.domain.errors.limits import QuotaExceeded as QuotaExceeded
from queryserver.domain.errors.limits import TooManyConnections as TooManyConnections
from queryserver.domain.errors.limits import TooManyRequests as TooManyRequests
from queryserver.domain.errors.limits import TooManySessions as TooManySessions
from queryserver.domain.errors.limits import TooManyStatements as TooManyStatements
from queryserver.domain.errors.limits import TooManyStreams as TooManyStreams
from queryserver.domain.errors.objects import ColumnNotFound as ColumnNotFound
from queryserver.domain.errors.objects import Conflict as Conflict
from queryserver.domain.errors.objects import DatabaseNotFound as DatabaseNotFound
from queryserver.domain.errors.objects import DefaultGroupKept as DefaultGroupKept
from queryserver.domain.errors.objects import DownloadRefused as DownloadRefused
from queryserver.domain.errors.objects import FunctionNotFound as FunctionNotFound
from queryserver.domain.errors.objects import GroupExists as GroupExists
from queryserver.domain.errors.objects import IdempotencyConflict as IdempotencyConflict
from queryserver.domain.errors.objects import IdentityTaken as IdentityTaken
from queryserver.domain.errors.objects import LastAdministrator as LastAdministrator
from queryserver.domain.errors.objects import MetadataNotFound as MetadataNotFound
from queryserver.domain.errors.objects import NestedPathNotFound as NestedPathNotFound
from queryserver.domain.errors.objects import NoMoreStatements as NoMoreStatements
from queryserver.domain.errors.objects import NotFound as NotFound
from queryserver.domain.errors.objects import OperationNotFound as OperationNotFound
from queryserver.domain.errors.objects import PreviousNotFinished as PreviousNotFinished
from queryserver.domain.errors.objects import SessionNotFound as SessionNotFound
from queryserver.domain.errors.objects import StatementTextExpired as StatementTextExpired
from queryserver.domain.errors.objects import TableNotFound as TableNotFound
from queryserver.domain.errors.objects import UnknownDialect as UnknownDialect
from queryserver.domain.errors.objects import UnknownGroup as UnknownGroup
from queryserver.domain.errors.objects import UnknownUser as UnknownUser
from queryserver.domain.errors.objects import UsernameTaken as UsernameTaken
from queryserver.domain.errors.parts import ConfigurationError as ConfigurationError
from queryserver.domain.errors.parts import DatabaseUnavailable as DatabaseUnavailable
from queryserver.domain.errors.parts import LoginBackendUnavailable as LoginBackendUnavailable
from queryserver.domain.errors.parts import SchemaMismatch as SchemaMismatch
from queryserver.domain.errors.parts import ServiceUnavailable as ServiceUnavailable
from queryserver.domain.errors.parts import Stopping as Stopping
from queryserver.domain.errors.parts import StorageError as StorageError
from queryserver.domain.errors.platform import CatalogDenied as CatalogDenied
from queryserver.domain.errors.platform import CatalogNotConfigured as CatalogNotConfigured
from queryserver.domain.errors.platform import CatalogNotSupported as CatalogNotSupported
from queryserver.domain.errors.platform import CatalogOutOfReach as CatalogOutOfReach
from queryserver.domain.errors.platform import CatalogUnavailable as CatalogUnavailable
from queryserver.domain.errors.platform import ConnectorInUse as ConnectorInUse
from queryserver.domain.errors.platform import ConnectorNameTaken as ConnectorNameTaken
from queryserver.domain.errors.platform import ConnectorNotFound as ConnectorNotFound
from queryserver.domain.errors.platform import ConnectorRefused as ConnectorRefused
from queryserver.domain.errors.platform import ConnectorTypeNotFound as ConnectorTypeNotFound
from queryserver.domain.errors.platform import DriverNotAllowed as DriverNotAllowed
from queryserver.domain.errors.platform import DriverNotInstalled as DriverNotInstalled
from queryserver.domain.errors.platform import EngineJwtRequired as EngineJwtRequired
from queryserver.domain.errors.platform import HostNotAllowed as HostNotAllowed
from queryserver.domain.errors.platform import ImmutableField as ImmutableField
from queryserver.domain.errors.platform import InterfaceNotSupported as InterfaceNotSupported
from queryserver.domain.errors.platform import KeyServerUnavailable as KeyServerUnavailable
from queryserver.domain.errors.platform import OptionNotAllowed as OptionNotAllowed
from queryserver.domain.errors.platform import SecretRequired as SecretRequired
from queryserver.domain.errors.platform import SourceNotConfigured as SourceNotConfigured
from queryserver.domain.errors.platform import TooManyIds as TooManyIds
from queryserver.domain.errors.platform import UnknownSetting as UnknownSetting
from queryserver.domain.errors.platform import VersionConflict as VersionConflict
