"""Sends signed webhooks about runs and statements that have ended."""

import hashlib
import hmac
from datetime import timedelta

import orjson

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.http_client import HttpClient, HttpRequest
from queryserver.platform.settings.sections import Secret
from queryserver.tasks.deliveries import Delivery, DeliveryFailed

_TIMEOUT = timedelta(seconds=10)
_MAX_RESPONSE_BYTES = 64 * 1024
_SUCCESS = range(200, 300)


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `X-Queryserver-Signature`.

    It contains the Unix timestamp in seconds and the HMAC-SHA256 of `<timestamp>.<body>`.
    """
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


class WebhookSender:
    """POSTs JSON to permitted addresses. Does not follow redirects; any status other than 2xx is a failure."""

    def __init__(self, rules: AddressRules, secret: Secret) -> None:
        self._rules = rules
        self._secret = secret.get_secret_value()

    async def send(self, delivery: Delivery) -> None:
        if not self._secret:
            raise DeliveryFailed("desktop.task_server.webhook_secret is not set.", final=True)
        message = delivery.message
        body = orjson.dumps(
            {
                "event": message.event,
                "name": message.name,
                "connector": message.connector,
                "state": message.state,
                "started": message.started,
                "duration_ms": message.duration_ms,
                "rows": message.rows,
                "history_uuid": str(message.history_uuid) if message.history_uuid else None,
                "error": message.error,
            },
            option=orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS,
        )
        request = HttpRequest(
            delivery.recipient,
            "POST",
            {
                "Content-Type": "application/json",
                "User-Agent": "queryserver",
                "X-Queryserver-Delivery": _ascii_header(delivery.key),
                "X-Queryserver-Signature": signature(self._secret, int(delivery.moment.timestamp()), body),
            },
            body,
            max_bytes=_MAX_RESPONSE_BYTES,
            within_s=_TIMEOUT.total_seconds(),
        )
        try:
            # Each webhook opens a new connection: webhooks are rare, and the receiver may restart in between.
            async with HttpClient(self._rules) as client:
                response = await client.send(request)
        except HostRefused as error:
            raise DeliveryFailed(error.message, final=True) from error
        except EngineUnavailable as error:
            raise DeliveryFailed(error.message) from error
        if response.status not in _SUCCESS:
            raise DeliveryFailed(f"The receiver answered {response.status}.")


def _ascii_header(key: str) -> str:
    return key.encode("ascii", "replace").decode()
