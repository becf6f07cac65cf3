"""PostgreSQL through asyncpg: server-side portals, rows to Arrow by column."""
