"""The engine for MySQL and MariaDB, through asyncmy."""
