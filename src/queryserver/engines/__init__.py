"""SQL engines behind `interfaces.engine`."""
