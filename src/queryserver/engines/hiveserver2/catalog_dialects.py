"""Which catalogue reads the metadata of which dialect."""

from collections.abc import Mapping

from queryserver.engines.hiveserver2.catalog import FamilyCatalog
from queryserver.engines.hiveserver2.catalog_hive import HiveCatalog
from queryserver.engines.hiveserver2.catalog_impala import ImpalaCatalog
from queryserver.engines.hiveserver2.catalog_spark import SparkCatalog
from queryserver.interfaces.engine import EngineSession

_CATALOGS: Mapping[str, type[FamilyCatalog]] = {"impala": ImpalaCatalog, "sparksql": SparkCatalog}


def catalog_of(dialect: str, session: EngineSession) -> FamilyCatalog:
    """The Catalog that reads through `session`; hplsql is Hive's."""
    return _CATALOGS.get(dialect, HiveCatalog)(session)
