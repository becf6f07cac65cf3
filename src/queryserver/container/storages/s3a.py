"""Settings to the store `s3a`."""

from queryserver.domain.errors.base import ConfigurationError
from queryserver.interfaces.storage import FileSystem
from queryserver.settings import Settings
from queryserver.settings.stores import AwsAccountSettings
from queryserver.storages.s3 import S3FileSystem, S3Options
from queryserver.storages.s3.options import S3Keys


def build(settings: Settings) -> FileSystem | None:
    """The first account; None without any. Raises ConfigurationError: it has no keys, or half of them."""
    options = options_of(settings)
    return None if options is None else S3FileSystem(options)


def options_of(settings: Settings) -> S3Options | None:
    """What the settings say about the first account. Raises ConfigurationError."""
    for name, account in settings.aws.aws_accounts.items():
        return S3Options(
            region=account.region,
            endpoint=account.endpoint,
            is_secure=account.is_secure,
            path_style=account.path_style,
            keys=_keys(f"aws.aws_accounts.{name}", account),
            buckets=_buckets(settings),
            allow_bucket_creation=settings.filebrowser.allow_bucket_creation,
        )
    return None


def _keys(table: str, account: AwsAccountSettings) -> S3Keys | None:
    key_id, secret = (given.get_secret_value().strip() for given in (account.access_key_id, account.secret_access_key))
    if key_id and secret:
        return S3Keys(key_id, secret, account.security_token.get_secret_value().strip())
    if key_id or secret:
        raise ConfigurationError([f"{table}: access_key_id and secret_access_key belong together."])
    if not account.allow_environment_credentials:
        raise ConfigurationError([f"{table}: keys are needed, since those of the environment are not allowed."])
    return None


def _buckets(settings: Settings) -> tuple[str, ...]:
    """Of a list that may name containers of other stores as well, those without a scheme or with that of S3."""
    named = (name.partition("://") for name in settings.filebrowser.buckets)
    return tuple(
        (rest if marker else scheme).strip("/")
        for scheme, marker, rest in named
        if not marker or scheme.lower() in {"s3", "s3a", "s3n"}
    )
