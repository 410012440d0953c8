"""The side path of an adapter beside its base's product, and its merge into a copy of a weight."""
