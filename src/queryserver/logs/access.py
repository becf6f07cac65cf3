"""The access log: one line per call, whatever the level of the main log (`desktop.logging.access_log`)."""

import logging
from collections.abc import Mapping

from queryserver.logs.lines import FIELDS

ACCESS_LOGGER = "queryserver.access"

_logger = logging.getLogger(ACCESS_LOGGER)


def log_call(fields: Mapping[str, object]) -> None:
    """Write one line; where to is a matter of `configure_logging`."""
    _logger.info("call", extra={FIELDS: fields})
