"""What is told of connections that TLS did not come about on."""

import ssl

import pytest

from queryserver.engines.connections import no_connection


def _refused(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] failed (_ssl.c:1002)")
    error.verify_message = message
    return error


def _failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] failed (_ssl.c:1002)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (_refused("certificate has expired"), ": its certificate was not accepted (certificate has expired)."),
        (_refused("not valid for 'db'."), ": its certificate was not accepted (not valid for 'db')."),
        (_failed("WRONG_VERSION_NUMBER"), ": it offers no TLS."),
        (_failed("NO_SHARED_CIPHER"), ": TLS could not be agreed on."),
        (ConnectionRefusedError(111, "refused by 10.0.0.7"), "."),
    ],
)
def test_the_reason_is_told_without_the_words_of_drivers(error: OSError, told: str) -> None:
    assert no_connection("Shop", error) == f"No connection to Shop could be made{told}"
    outer = RuntimeError("a driver's own")
    outer.__cause__ = error
    assert no_connection("Shop", outer) == f"No connection to Shop could be made{told}"


def test_an_error_that_is_its_own_context_ends() -> None:
    first, second = OSError("first"), OSError("second")
    first.__context__, second.__context__ = second, first
    assert no_connection("Shop", first) == "No connection to Shop could be made."
