"""Settings of tracing: table `tracing`."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from queryserver.platform.settings.sections import Count, Flag, OptionalPath, Positive, Secrets, Section, Text

_PATH = "/v1/traces"


def _endpoint(url: str) -> str:
    if not url:
        return url
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_valid = urlsplit(""), False
    if not is_valid:
        raise ValueError("must be an http or https URL, such as http://localhost:4318.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must contain neither credentials nor a query; use tracing.otlp_headers for credentials.")
    return url


def _headers(pairs: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for pair in pairs:
        name, equals, value = pair.get_secret_value().partition("=")
        if not (name.strip() and equals and value.strip()) or not f"{name}{value}".isprintable():
            raise ValueError("must contain entries of the form name=value.")
    return pairs


class TracingSettings(Section):
    """Tracing of statements with OpenTelemetry."""

    otlp_endpoint: Annotated[Text, AfterValidator(_endpoint)] = ""
    """URL of an OTLP/HTTP receiver, such as `http://localhost:4318`. `/v1/traces` is appended unless the URL ends with
    it. Empty: tracing is off."""
    otlp_headers: Annotated[Secrets, AfterValidator(_headers)] = ()
    """Headers of each export, as `name=value`, for example for the receiver's credentials."""
    otlp_ca: OptionalPath = None
    """PEM file of the CAs that are trusted for the receiver; empty: the public CAs."""
    timeout_s: Annotated[Positive, Field(le=60)] = 10
    """Timeout for one export, including its retries. Spans that are not exported by then are dropped."""
    service_name: Annotated[Text, Field(min_length=1)] = "queryserver"
    """Value of the resource attribute `service.name`."""
    sample_percent: Annotated[Count, Field(le=100)] = 100
    """Percentage of the statements that are traced, among those whose call had no `traceparent` header. For other
    statements, the caller's decision in this header applies."""
    query_text: Flag = False
    """Whether spans contain the text of the statement, which may contain secrets and personal data."""

    @property
    def url(self) -> str:
        """The full URL of the receiver, or an empty string if tracing is off."""
        base = self.otlp_endpoint.rstrip("/")
        return base if not base or base.endswith(_PATH) else base + _PATH

    @property
    def headers(self) -> dict[str, str]:
        pairs = (one.get_secret_value().partition("=") for one in self.otlp_headers)
        return {name.strip(): value.strip() for name, _, value in pairs}
