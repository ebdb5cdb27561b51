"""The Lua scripts, and the bytes that they are spoken to with."""
