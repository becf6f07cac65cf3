"""File stores behind `interfaces.storage`."""
