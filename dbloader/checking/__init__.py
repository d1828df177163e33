"""Verify a store, and collect what a check finds."""
