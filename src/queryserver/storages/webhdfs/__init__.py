"""HDFS over WebHDFS, and over HttpFS, which speaks the same calls a little differently (Contract storage 10.2)."""

from queryserver.storages.webhdfs.address import Timeouts, WebHdfsAddress
from queryserver.storages.webhdfs.file_system import WebHdfsFileSystem

__all__ = ["Timeouts", "WebHdfsAddress", "WebHdfsFileSystem"]
