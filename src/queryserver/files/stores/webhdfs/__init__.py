"""HDFS over WebHDFS and HttpFS (Contract storage 10.1)."""
