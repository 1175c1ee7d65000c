"""Bytes, text and live objects -> `ir.Module`: one file for each format; `detect.read` picks one by content."""
