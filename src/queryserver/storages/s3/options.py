"""What an S3 store is reached with."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Credentials of the service, the same for all users."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class S3Options:
    """Address and login of one store. Texts may be empty: the default of AWS counts."""

    region: str = "us-east-1"
    endpoint: str = ""
    """`https://host:port` of a store that is not AWS; without a scheme `is_secure` decides."""
    is_secure: bool = True
    path_style: bool = False
    keys: S3Keys | None = None
    """None: those of the environment: its variables, its files, the machine's role."""
    buckets: tuple[str, ...] = ()
    """The buckets that the root shows; empty: all that the store tells."""
    allow_bucket_creation: bool = False
    max_connections: int = 50
    timeout_s: float = 30.0
    """How long the store may be silent. Calls that move bytes get more, by their number."""

    @property
    def endpoint_url(self) -> str | None:
        """With its scheme; None for AWS."""
        if not self.endpoint:
            return None
        if "://" in self.endpoint:
            return self.endpoint
        return f"{'https' if self.is_secure else 'http'}://{self.endpoint}"
