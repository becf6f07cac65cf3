"""Amazon S3 and the stores that speak its API."""

from queryserver.storages.s3.file_system import S3FileSystem as S3FileSystem
from queryserver.storages.s3.options import S3Options as S3Options
