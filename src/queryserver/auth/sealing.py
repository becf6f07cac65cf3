"""Secrets at rest: AES-256-GCM. A sealed text is key id (4 bytes), nonce (12 bytes), ciphertext with its tag."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queryserver.auth.keys import Keyring

_ID_BYTES = 4
_NONCE_BYTES = 12


class AesSealer:
    """See `interfaces.sealing.Sealer`. Former keys of the ring still open what they sealed."""

    def __init__(self, keyring: Keyring) -> None:
        self._present = bytes.fromhex(keyring.present.id)
        self._ciphers = {bytes.fromhex(key.id): AESGCM(key.sealing) for key in reversed(list(keyring))}

    def seal(self, secret: bytes) -> bytes:
        """The encrypted form; two of one secret never look alike."""
        nonce = os.urandom(_NONCE_BYTES)
        return self._present + nonce + self._ciphers[self._present].encrypt(nonce, secret, self._present)

    def unseal(self, sealed: bytes) -> bytes:
        """The secret. Raises ValueError when it was changed or its key is unknown."""
        key_id, nonce = sealed[:_ID_BYTES], sealed[_ID_BYTES : _ID_BYTES + _NONCE_BYTES]
        cipher = self._ciphers.get(key_id)
        if cipher is None or len(nonce) < _NONCE_BYTES:
            message = "sealed with an unknown key"
            raise ValueError(message)
        try:
            return cipher.decrypt(nonce, sealed[_ID_BYTES + _NONCE_BYTES :], key_id)
        except InvalidTag:
            message = "the sealed text was changed"
            raise ValueError(message) from None
