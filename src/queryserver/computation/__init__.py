"""Processes that compute on what users send, each computation with limits of time and memory."""
