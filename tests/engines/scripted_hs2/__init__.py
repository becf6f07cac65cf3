"""A HiveServer2 that answers by rules over real sockets, as Impala does, of which no server is published."""
