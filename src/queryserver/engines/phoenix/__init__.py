"""Phoenix through its Query Server: Avatica's protocol buffers over HTTP, by a client of our own."""

from queryserver.engines.phoenix.address import Authentication as Authentication
from queryserver.engines.phoenix.address import Login as Login
from queryserver.engines.phoenix.address import Patience as Patience
from queryserver.engines.phoenix.address import PhoenixAddress as PhoenixAddress
from queryserver.engines.phoenix.engine import PhoenixEngine as PhoenixEngine
