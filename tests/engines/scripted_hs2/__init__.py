"""A HiveServer2 with scripted responses over real sockets, which imitates Impala because no Impala server is
published.
"""
