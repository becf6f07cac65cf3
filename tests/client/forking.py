"""Starts `qs` by forking a process that has already imported it, so a command takes 50 ms instead of a second.

This file is a separate program (`python forking.py FD`), where FD is a socket. Each message on the socket contains the
arguments and environment of a command, and four descriptors: stdin, stdout, stderr, and one for the report. The report
consists of a line with the PID and a line with the exit code.
"""

import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import termios
import traceback
from typing import Any, NoReturn

MODULES = ("typer._adapters", "queryserver_client.sync", "httpcore", "rich.console", "rich.cells", "certifi", "csv")
COMMANDS = (
    "sql",
    "sessions",
    "operations",
    "stores",
    "transfers",
    "importing",
    "tables",
    "terminal",
    "prompt",
    "completion",
)


def serve(requests: socket.socket) -> None:
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    for name in (*MODULES, *(f"queryserver_client.cli.{command}" for command in COMMANDS)):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 65_536, 4)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Start the command, and report its PID and exit code. A separate process does this, because commands run
    concurrently.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, report = descriptors
    child = os.fork()
    if child == 0:
        os.close(report)
        _run(request, standard)
    for descriptor in standard:
        os.close(descriptor)
    os.write(report, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any], standard: list[int]) -> NoReturn:
    from queryserver_client.cli import main

    # Background processes of shells ignore SIGINT, and processes under nohup ignore SIGHUP. The commands would inherit
    # this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # makes Ctrl-C send a signal to the command
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["qs", *request["words"]]
    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
