"""MySQL and MariaDB through asyncmy: unbuffered results with flow control, rows to Arrow by column."""

from queryserver.engines.mysql.address import MysqlAddress as MysqlAddress
from queryserver.engines.mysql.engine import MysqlEngine as MysqlEngine
