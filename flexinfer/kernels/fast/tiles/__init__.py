"""Which tile computes what on a device: shipped with the package or tuned there."""
