"""Connects to PostgreSQL through asyncpg, reads rows from server-side portals, and converts them to Arrow by column."""
