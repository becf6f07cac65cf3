"""Results as files, in constant memory (Contract editor 8.2)."""

from queryserver.formats.download.content_coding import preferred_coding as preferred_coding
from queryserver.formats.download.encoder import ResultSource as ResultSource
from queryserver.formats.download.kinds import ContentCoding as ContentCoding
from queryserver.formats.download.kinds import DownloadFormat as DownloadFormat
from queryserver.formats.download.kinds import FileForm as FileForm
from queryserver.formats.download.stream import download as download
