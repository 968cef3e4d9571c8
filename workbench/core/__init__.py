"""The production core: what a host imports."""
