"""Any installed SQLAlchemy dialect with a blocking DBAPI driver, in bounded threads.

Each session is a connection of its own: nothing makes a used one clean on every engine, so none is used twice.
"""

from queryserver.engines.sqlalchemy.address import SqlalchemyAddress as SqlalchemyAddress
from queryserver.engines.sqlalchemy.engine import SqlalchemyEngine as SqlalchemyEngine
