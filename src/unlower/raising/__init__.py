"""Rewrites from module to module that keep values and recover structure."""
