"""DEV. Architectures as pure functions; one file each, on top of `spec.py`."""
