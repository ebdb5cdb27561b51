"""Limits where calls are made. Each module is for one library, and is imported only by its name."""
