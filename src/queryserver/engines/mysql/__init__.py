"""Connects to MySQL and MariaDB through asyncmy."""
