"""Results as files, in constant memory (Contract editor 8.2)."""

from queryserver.formats.download.encoder import ResultSource as ResultSource
from queryserver.formats.download.kinds import DownloadFormat as DownloadFormat
from queryserver.formats.download.stream import download as download
