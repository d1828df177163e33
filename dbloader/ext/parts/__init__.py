"""Convert in parts, on any machines: plan once, make the parts in any order, publish one store."""
