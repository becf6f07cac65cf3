"""Connects to Hive, Impala and Spark SQL over the HiveServer2 protocol (TCLIService)."""
