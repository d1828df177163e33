"""Run a conversion in parts, on any machines: a frozen plan, parts in any order, one publish."""
