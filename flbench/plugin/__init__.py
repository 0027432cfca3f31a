"""Plugins: find, load, validate, call and isolate them."""
