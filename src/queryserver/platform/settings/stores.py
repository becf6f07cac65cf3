"""File stores: tables `filebrowser`, `hadoop`, `aws`, `azure`, `desktop.ozone`, `importer`."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from queryserver.platform.settings.sections import (
    GIB,
    KIB,
    MIB,
    NO_SECRET,
    Count,
    Flag,
    Names,
    OptionalPath,
    Positive,
    Secret,
    Section,
    Text,
    Whole,
)


class FilebrowserSettings(Section):
    """Storage calls, and the local root."""

    file_upload_chunk_size: Positive = 5 * MIB
    """Size of upload parts, sent to clients."""
    concurrent_max_connections: Positive = 5
    """Uploads at once, sent to clients."""
    max_file_size_upload_limit: Annotated[Whole, Field(ge=-1)] = -1
    """Largest upload; -1: no limit."""
    restrict_file_extensions: Names = ()
    """Extensions that files must not have, whether by an upload, as new files, or by renaming."""
    allow_file_extensions: Names = ()
    """The only extensions that files may have in these ways; empty: all."""
    max_snappy_decompression_size: Count = 25 * MIB
    """Maximum size of a snappy file that is shown."""
    max_decompress_bytes: Count = 64 * MIB
    """Maximum bytes that are decompressed to show a part of a file."""
    remote_storage_home: Text = ""
    """Home directory of users in object stores; `${USER}` stands for the name."""
    managed_prefixes: Names = ()
    """Prefixes that another service manages."""
    buckets: Names = ()
    """Buckets that are listed; empty: all."""
    max_file_editor_size: Count = 256 * KIB
    """Maximum size of a file that clients edit."""
    show_upload_button: Flag = True
    """Sent to clients; false: uploads are refused."""
    file_download_cache_control: Text = "private, no-cache"
    """`Cache-Control` of downloads."""
    listing_count_limit: Positive = 100_000
    """Maximum entries that are counted."""
    listing_sort_limit: Positive = 100_000
    """Maximum entries that are sorted."""
    listing_scan_limit: Positive = 1_000_000
    """Maximum entries that are read."""
    umask: Annotated[Text, Field(pattern=r"^0?[0-7]{3}$")] = "022"
    """Permission bits that new files and directories do not get."""
    allow_bucket_creation: Flag = False
    """Whether creating a top-level directory in an object store creates a bucket."""
    browser_url_prefix: Text = "/api/v1/storage/view="
    """Prefix of the path in links."""
    max_bytes_per_user: Count = 0
    """Bytes that a user may store in the local root: in the home directory, including the trash, and as files in
    `/shared`; 0: no limit."""
    local_root: OptionalPath = None
    """Directory of the store `file`; empty: there is none, or `<data_dir>/files` in the embedded mode."""


class HdfsClusterSettings(Section):
    """The store `hdfs`."""

    fs_defaultfs: Text = "hdfs://localhost:8020"
    """Name of the file system."""
    webhdfs_url: Text = "http://localhost:9870/webhdfs/v1"
    """Address of WebHDFS or HttpFS; a comma list for several name nodes."""
    redirect_hosts: Names = ()
    """Hosts other than those of webhdfs_url to which reads and writes may be redirected: the data nodes; `*.domain`
    for all of a domain."""
    security_enabled: Flag = False
    """Whether Kerberos is used."""
    ssl_cert_ca_verify: Flag = True
    """Whether certificates are verified."""
    superuser: Text = "hdfs"
    """Superuser of the cluster."""
    supergroup: Text = "supergroup"
    """Group of superusers."""
    service_user: Text = "queryserver"
    """The login of this service, which acts for callers."""
    temp_dir: Text = "/tmp"  # noqa: S108 a directory of HDFS
    """Accepted from older settings files, without effect: unfinished files are stored beside their target."""
    trash_interval: Count = 0
    """Minutes until the trash is emptied; 0: the setting of the HDFS server."""


class YarnClusterSettings(Section):
    """A YARN cluster, shown as a browser."""

    resourcemanager_api_url: Text = ""
    """Address of the resource manager."""


class HadoopSettings(Section):
    """Hadoop clusters."""

    hdfs_clusters: dict[str, HdfsClusterSettings] = Field(default_factory=dict[str, HdfsClusterSettings])
    yarn_clusters: dict[str, YarnClusterSettings] = Field(default_factory=dict[str, YarnClusterSettings])


class AwsAccountSettings(Section):
    """The store `s3a`."""

    access_key_id: Secret = NO_SECRET
    """Key id."""
    secret_access_key: Secret = NO_SECRET
    """Key."""
    security_token: Secret = NO_SECRET
    """Session token."""
    allow_environment_credentials: Flag = True
    """Whether credentials of the environment are used if none are set here."""
    region: Text = "us-east-1"
    """Region."""
    endpoint: Text = ""
    """Address of a store that is not AWS."""
    path_style: Flag = False
    """Whether the bucket is in the path instead of the host name."""
    is_secure: Flag = True
    """Whether https is used."""
    default_home_path: Text = "s3a://"
    """Home of users."""


class AwsSettings(Section):
    """S3 and its likes."""

    aws_accounts: dict[str, AwsAccountSettings] = Field(default_factory=dict[str, AwsAccountSettings])


class AzureAccountSettings(Section):
    """A login at Azure storage."""

    client_id: Secret = NO_SECRET
    """Id of the application."""
    client_secret: Secret = NO_SECRET
    """Secret of the application."""
    tenant_id: Text = ""
    """Tenant."""
    account_key: Secret = NO_SECRET
    """Key of the storage account, instead of an application."""
    sas_token: Secret = NO_SECRET
    """Shared access signature, instead of a key or an application."""
    login_url: Text = "https://login.microsoftonline.com"
    """Address of the login service; different in sovereign clouds."""


class AbfsClusterSettings(Section):
    """The store `abfs`."""

    fs_defaultfs: Text = ""
    """Name of the file system, `abfs://container@account.dfs.core.windows.net`."""
    webhdfs_url: Text = ""
    """Address of the service, `https://…`."""
    blob_url: Text = ""
    """Address of the Blob service, used without a hierarchical namespace; empty: made from `webhdfs_url`."""
    hierarchical_namespace: Flag = True
    """Whether the account has a hierarchical namespace; without one, there are neither renames nor permissions."""
    default_home_path: Text = ""
    """Home of users."""


class AzureSettings(Section):
    """Azure storage."""

    azure_accounts: dict[str, AzureAccountSettings] = Field(default_factory=dict[str, AzureAccountSettings])
    abfs_clusters: dict[str, AbfsClusterSettings] = Field(default_factory=dict[str, AbfsClusterSettings])
    adls_clusters: dict[str, AbfsClusterSettings] = Field(default_factory=dict[str, AbfsClusterSettings])


class OzoneSettings(Section):
    """The store `ofs`."""

    fs_defaultfs: Text = ""
    """Name of the file system, `ofs://…`."""
    webhdfs_url: Text = ""
    """Address of HttpFS."""
    redirect_hosts: Names = ()
    """Hosts other than that of webhdfs_url to which reads and writes may be redirected; `*.domain` for all of a
    domain."""
    service_user: Text = "queryserver"
    """The login of this service, which acts for callers."""
    security_enabled: Flag = False
    """Whether Kerberos is used."""
    ssl_cert_ca_verify: Flag = True
    """Whether certificates are verified."""
    ofs_chunk_size: Positive = 134_217_728
    """Largest file that is copied; larger ones are skipped."""


class ImporterSettings(Section):
    """Import of files into tables."""

    is_enabled: Flag = True
    """False: every call of the importer is refused."""
    max_local_file_size_upload_limit: Positive = 100 * MIB
    """Largest upload."""
    restrict_local_file_extensions: Names = ()
    """Extensions that uploads must not have."""
    upload_expiry_seconds: Positive = 86400
    """How long an upload is kept."""
    max_files_per_user: Positive = 50
    """Uploads of one user."""
    max_bytes_per_user: Positive = GIB
    """Total size of all uploads of one user."""
    upload_dir: OptionalPath = None
    """Directory of uploads, shared by all servers; empty: `<data_dir>/uploads`."""

    @property
    def upload_expiry(self) -> timedelta:
        return timedelta(seconds=self.upload_expiry_seconds)
