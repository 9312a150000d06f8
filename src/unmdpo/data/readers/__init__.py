"""Rows from files: JSON lines, JSON, CSV, Parquet and Arrow, gzipped or not."""
