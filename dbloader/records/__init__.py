"""Encode and decode records, and the columns and manifest that describe them."""
