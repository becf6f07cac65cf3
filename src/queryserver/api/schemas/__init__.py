"""Wire shapes. Only `api` imports them."""
