"""Paged attention that knows no model: specs, tables, masks, caches and back ends."""
