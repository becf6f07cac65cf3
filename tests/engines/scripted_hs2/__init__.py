"""A HiveServer2 that responds by rules over real sockets, like Impala, for which no server is published."""
