"""The OpenAPI document: what FastAPI derives, completed from the tables beside this file."""
