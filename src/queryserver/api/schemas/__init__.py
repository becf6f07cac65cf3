"""The wire format: models of requests and responses. Imported only by `api`."""
