"""Errors of an S3 store as domain errors.

The texts are our own: those of stores name hosts, account numbers and requests.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NoReturn

from aiohttp import ClientError as HttpError
from botocore import exceptions as botocore_errors

from queryserver.domain.errors.base import NotSupported, PermissionDenied, QueryServerError
from queryserver.domain.errors.files import (
    ChangedMeanwhile,
    DirectoryNotEmpty,
    InvalidName,
    InvalidPath,
    NotADirectory,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    VerificationFailed,
)

Meanings = Mapping[str, type[QueryServerError]]
"""What codes of a store mean in a certain call."""


class UploadGone(PathNotFound):
    """The multipart upload was completed or aborted, or never was."""


class PastTheEnd(StorageError):
    """No byte of the object is in the range."""


_MISSING = (PathNotFound, "{path} does not exist.")
_REFUSED = (PermissionDenied, "The store refuses access to {path}.")
_EXISTS = (PathExists, "{path} exists.")
# The users did nothing wrong: 502, not 403.
_LOGIN = (StorageError, "The store does not accept the credentials of this service.")
_BUSY = (StorageUnavailable, "The store is overloaded or has a failure of its own.")
_REGION = (StorageError, "The bucket of {path} lies in another region than the configured one.")

_KINDS: Mapping[str, tuple[type[QueryServerError], str]] = MappingProxyType(
    {
        **dict.fromkeys(("NoSuchKey", "NoSuchBucket", "404", "NoSuchVersion"), _MISSING),
        **dict.fromkeys(("AccessDenied", "403", "AllAccessDisabled", "AccountProblem"), _REFUSED),
        **dict.fromkeys(("BucketAlreadyExists", "BucketAlreadyOwnedByYou", "ExistingObjectIsDirectory"), _EXISTS),
        **dict.fromkeys(
            (
                *("SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidSecurity", "InvalidToken", "ExpiredToken"),
                *("TokenRefreshRequired", "NotSignedUp", "CredentialsNotSupported", "InvalidClientTokenId"),
            ),
            _LOGIN,
        ),
        **dict.fromkeys(
            (
                *("SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
                *("TooManyRequests", "InternalError", "BandwidthLimitExceeded", "RequestTimeout", "Busy"),
                *("500", "502", "503", "504", "429", "XMinioServerNotInitialized"),
            ),
            _BUSY,
        ),
        **dict.fromkeys(
            (
                *("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
                *("IncorrectEndpoint", "WrongRegion"),
            ),
            _REGION,
        ),
        **dict.fromkeys(
            ("TemporaryRedirect", "Redirect", "302", "307", "308"),
            (StorageError, "The store sends this service elsewhere; redirects are not followed."),
        ),
        **dict.fromkeys(
            ("RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"),
            (StorageError, "The clocks of this service and of the store differ too much."),
        ),
        **dict.fromkeys(("QuotaExceeded", "XMinioAdminBucketQuotaExceeded"), (
            StoreQuotaExceeded, "A quota of the store is used up."
        )),
        **dict.fromkeys(("XMinioStorageFull", "InsufficientStorage", "507"), (
            StorageError, "The store has no room left."
        )),
        **dict.fromkeys(("BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody"), (
            VerificationFailed, "The store did not get the bytes of {path} that were sent."
        )),
        **dict.fromkeys(("NotImplemented", "501", "MethodNotAllowed", "405"), (
            NotSupported, "The store does not offer this."
        )),
        "PreconditionFailed": (ChangedMeanwhile, "{path} has changed meanwhile."),
        "412": (ChangedMeanwhile, "{path} has changed meanwhile."),
        "ConditionalRequestConflict": (ChangedMeanwhile, "{path} is being changed by somebody else."),
        "OperationAborted": (ChangedMeanwhile, "{path} is being changed by somebody else."),
        "BucketNotEmpty": (DirectoryNotEmpty, "{path} is not empty."),
        "ObjectParentIsFile": (NotADirectory, "A part of {path} is a file."),
        "KeyTooLongError": (InvalidPath, "The path is longer than the store allows."),
        "InvalidBucketName": (InvalidName, "No bucket of this store can have the name of {path}."),
        "TooManyBuckets": (StoreQuotaExceeded, "The store allows no further bucket."),
        "EntityTooLarge": (StorageError, "{path} is larger than the store allows."),
        "EntityTooSmall": (StorageError, "A part of {path} is smaller than the store allows."),
        "InvalidObjectState": (PermissionDenied, "{path} is archived; the store must restore it first."),
        "NoSuchUpload": (UploadGone, "The store does not know this upload, or knows it no more."),
        "InvalidRange": (PastTheEnd, "The range is outside the file."),
        "416": (PastTheEnd, "The range is outside the file."),
    }
)  # fmt: skip
_TEXTS: Mapping[type[QueryServerError], str] = MappingProxyType(dict(_KINDS.values()))
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_OVERLOADED_FROM = 500

_NO_ANSWER = "The store does not answer."
_NO_LOGIN = "This service has no credentials for the store, or those it has cannot be read."


@contextmanager
def s3_errors(path: str, means: Meanings = MappingProxyType({})) -> Generator[None]:
    """Every error of the driver inside becomes a domain error about `path` as users write it."""
    try:
        yield
    except botocore_errors.ClientError as error:
        _raise_refusal(error, path, means)
    except (
        botocore_errors.NoCredentialsError,
        botocore_errors.PartialCredentialsError,
        botocore_errors.CredentialRetrievalError,
        botocore_errors.ProfileNotFound,
    ) as error:
        raise StorageError(_NO_LOGIN) from error
    except botocore_errors.IncompleteReadError as error:
        raise StorageError(f"The store broke off in the middle of {path}.") from error
    except botocore_errors.SSLError as error:
        raise StorageUnavailable("No trusted connection to the store comes about.") from error
    except (
        botocore_errors.HTTPClientError,
        botocore_errors.ConnectionError,
        HttpError,
        TimeoutError,
        OSError,
    ) as error:
        raise StorageUnavailable(_NO_ANSWER) from error
    except (botocore_errors.BotoCoreError, ValueError) as error:
        raise StorageError("The store gives an answer that is none, or this call is none for it.") from error


def _raise_refusal(error: botocore_errors.ClientError, path: str, means: Meanings) -> NoReturn:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if kind := means.get(code):
        raise kind(_TEXTS.get(kind, "{path} cannot be used for this.").format(path=path)) from error
    if code in _KINDS:
        kind, text = _KINDS[code]
        raise kind(text.format(path=path)) from error
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    told = code if _CODE.fullmatch(code) else "an unknown code"
    failed = StorageUnavailable if status >= _OVERLOADED_FROM else StorageError
    raise failed(f"The store refuses a call for {path}: {told}.") from error
