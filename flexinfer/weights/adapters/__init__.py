"""Adapters: read, checked, and brought in beside their base or merged into copies of it."""
