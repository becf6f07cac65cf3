"""Tokens of callers in what engines answer: some put the header that they refused into their error texts."""

# Whatever is shorter is no token: replacing it would spoil answers that hold the same letters by chance.
_LEAST_CHARACTERS = 16


def without_token(content: bytes, token: str | None) -> bytes:
    """An answer of an engine with asterisks where the token of its call stands; of the same length, as frames want."""
    if token is None or len(token) < _LEAST_CHARACTERS:
        return content
    secret = token.encode()
    return content.replace(secret, b"*" * len(secret)) if secret in content else content
