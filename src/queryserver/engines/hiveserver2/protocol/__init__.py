"""TCLIService as Python: structs, methods, and messages to and from bytes.

`declaring` says how a struct is written down; `status`, `rows`, `calls` and `impala` hold the structs;
`methods` names the calls, each with its request and its reply; `messages` turns both into bytes and back:

    raw = encode_call(OPEN_SESSION, TOpenSessionReq(client_protocol=9), 1)
    reply = decode_reply(OPEN_SESSION, answer, 1)

Numbers and types of fields are facts of Hive's TCLIService.thrift and Impala's ImpalaService.thrift.
"""
