"""Settings of file stores: tables `filebrowser`, `hadoop`, `aws`, `azure`, `desktop.ozone`, `importer`."""

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
    """Storage calls and the local root directory."""

    file_upload_chunk_size: Positive = 5 * MIB
    """Size of upload parts, which is reported to clients."""
    concurrent_max_connections: Positive = 5
    """Number of concurrent uploads, which is reported to clients."""
    max_file_size_upload_limit: Annotated[Whole, Field(ge=-1)] = -1
    """Maximum size of an upload; -1: no limit."""
    restrict_file_extensions: Names = ()
    """Forbidden file name extensions for uploaded, new and renamed files."""
    allow_file_extensions: Names = ()
    """The only permitted file name extensions for uploaded, new and renamed files; empty: all."""
    max_snappy_decompression_size: Count = 25 * MIB
    """Maximum size of a snappy file whose content is shown."""
    max_decompress_bytes: Count = 64 * MIB
    """Maximum number of bytes that are decompressed to show part of a file."""
    remote_storage_home: Text = ""
    """Home directory of users in object stores; `${USER}` is replaced with the user name."""
    managed_prefixes: Names = ()
    """Prefixes that are managed by another service."""
    buckets: Names = ()
    """Buckets to list; empty: all."""
    max_file_editor_size: Count = 256 * KIB
    """Maximum size of a file that clients can edit."""
    show_upload_button: Flag = True
    """Reported to clients; if false, uploads are refused."""
    file_download_cache_control: Text = "private, no-cache"
    """Value of the `Cache-Control` header for downloads."""
    listing_count_limit: Positive = 100_000
    """Maximum number of entries of a directory that are counted."""
    listing_sort_limit: Positive = 100_000
    """Maximum number of entries of a directory that are sorted."""
    listing_scan_limit: Positive = 1_000_000
    """Maximum number of entries of a directory that are read."""
    umask: Annotated[Text, Field(pattern=r"^0?[0-7]{3}$")] = "022"
    """Permission bits that are cleared for new files and directories."""
    allow_bucket_creation: Flag = False
    """Whether creating a top-level directory in an object store creates a bucket."""
    browser_url_prefix: Text = "/api/v1/storage/view="
    """URL path prefix of links to files."""
    max_bytes_per_user: Count = 0
    """Bytes that one user may store in the local root: in the home directory, including the trash, and in own files in
    `/shared`; 0: no limit."""
    local_root: OptionalPath = None
    """Root directory of the store `file`; empty: no such store, or `<data_dir>/files` in embedded mode."""


class HdfsClusterSettings(Section):
    """The store `hdfs`."""

    fs_defaultfs: Text = "hdfs://localhost:8020"
    """URI of the file system."""
    webhdfs_url: Text = "http://localhost:9870/webhdfs/v1"
    """URL of WebHDFS or HttpFS, or a comma-separated list of URLs for several name nodes."""
    redirect_hosts: Names = ()
    """Additional hosts, besides those of `webhdfs_url`, to which reads and writes may be redirected, such as data
    nodes; `*.domain` permits all hosts of a domain."""
    security_enabled: Flag = False
    """Whether Kerberos is used."""
    ssl_cert_ca_verify: Flag = True
    """Whether certificates are verified."""
    superuser: Text = "hdfs"
    """Superuser of the cluster."""
    supergroup: Text = "supergroup"
    """Group of superusers."""
    service_user: Text = "queryserver"
    """User name of this service, which acts on behalf of callers."""
    temp_dir: Text = "/tmp"  # noqa: S108 a directory of HDFS
    """Accepted from older settings files; has no effect: unfinished files are stored next to their target."""
    trash_interval: Count = 0
    """Minutes until the trash is emptied; 0: as configured on the HDFS server."""


class YarnClusterSettings(Section):
    """A YARN cluster, which clients show as a browser."""

    resourcemanager_api_url: Text = ""
    """URL of the resource manager."""


class HadoopSettings(Section):
    """Hadoop clusters."""

    hdfs_clusters: dict[str, HdfsClusterSettings] = Field(default_factory=dict[str, HdfsClusterSettings])
    yarn_clusters: dict[str, YarnClusterSettings] = Field(default_factory=dict[str, YarnClusterSettings])


class AwsAccountSettings(Section):
    """The store `s3a`."""

    access_key_id: Secret = NO_SECRET
    """Access key id."""
    secret_access_key: Secret = NO_SECRET
    """Secret access key."""
    security_token: Secret = NO_SECRET
    """Session token."""
    allow_environment_credentials: Flag = True
    """Whether credentials from the environment are used if none are set here."""
    region: Text = "us-east-1"
    """Region."""
    endpoint: Text = ""
    """URL of an S3-compatible store other than AWS."""
    path_style: Flag = False
    """Whether URLs contain the bucket in the path instead of the host name."""
    is_secure: Flag = True
    """Whether HTTPS is used."""
    default_home_path: Text = "s3a://"
    """Home directory of users."""


class AwsSettings(Section):
    """S3 and S3-compatible stores."""

    aws_accounts: dict[str, AwsAccountSettings] = Field(default_factory=dict[str, AwsAccountSettings])


class AzureAccountSettings(Section):
    """Credentials for Azure Storage."""

    client_id: Secret = NO_SECRET
    """Application (client) id."""
    client_secret: Secret = NO_SECRET
    """Client secret of the application."""
    tenant_id: Text = ""
    """Tenant id."""
    account_key: Secret = NO_SECRET
    """Key of the storage account, in place of an application."""
    sas_token: Secret = NO_SECRET
    """Shared access signature, in place of a key or an application."""
    login_url: Text = "https://login.microsoftonline.com"
    """URL of the login service, which is different in sovereign clouds."""


class AbfsClusterSettings(Section):
    """The store `abfs`."""

    fs_defaultfs: Text = ""
    """URI of the file system, `abfs://container@account.dfs.core.windows.net`."""
    webhdfs_url: Text = ""
    """URL of the service, `https://…`."""
    blob_url: Text = ""
    """URL of the Blob service, used if there is no hierarchical namespace; empty: derived from `webhdfs_url`."""
    hierarchical_namespace: Flag = True
    """Whether the account has a hierarchical namespace. Otherwise, renames and permissions are not supported."""
    default_home_path: Text = ""
    """Home directory of users."""


class AzureSettings(Section):
    """Azure Storage."""

    azure_accounts: dict[str, AzureAccountSettings] = Field(default_factory=dict[str, AzureAccountSettings])
    abfs_clusters: dict[str, AbfsClusterSettings] = Field(default_factory=dict[str, AbfsClusterSettings])
    adls_clusters: dict[str, AbfsClusterSettings] = Field(default_factory=dict[str, AbfsClusterSettings])


class OzoneSettings(Section):
    """The store `ofs`."""

    fs_defaultfs: Text = ""
    """URI of the file system, `ofs://…`."""
    webhdfs_url: Text = ""
    """URL of HttpFS."""
    redirect_hosts: Names = ()
    """Additional hosts, besides that of `webhdfs_url`, to which reads and writes may be redirected; `*.domain` permits
    all hosts of a domain."""
    service_user: Text = "queryserver"
    """User name of this service, which acts on behalf of callers."""
    security_enabled: Flag = False
    """Whether Kerberos is used."""
    ssl_cert_ca_verify: Flag = True
    """Whether certificates are verified."""
    ofs_chunk_size: Positive = 134_217_728
    """Maximum size of a file that is copied; larger files are skipped."""


class ImporterSettings(Section):
    """Import of files into tables."""

    is_enabled: Flag = True
    """Whether the importer can be used; if false, all its calls are refused."""
    max_local_file_size_upload_limit: Positive = 100 * MIB
    """Maximum size of an upload."""
    restrict_local_file_extensions: Names = ()
    """Forbidden file name extensions for uploads."""
    upload_expiry_seconds: Positive = 86400
    """How long an upload is kept."""
    max_files_per_user: Positive = 50
    """Maximum number of uploads per user."""
    max_bytes_per_user: Positive = GIB
    """Maximum total size of a user's uploads."""
    upload_dir: OptionalPath = None
    """Directory for uploads, which all servers must share; empty: `<data_dir>/uploads`."""

    @property
    def upload_expiry(self) -> timedelta:
        return timedelta(seconds=self.upload_expiry_seconds)
