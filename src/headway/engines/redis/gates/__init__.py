"""Gates of events on a server: `commands` are sent for a thread or a task, `listener` hears what other processes did.

`script/lua/once.lua` decides, one script call for each command. `gate` is `base.Gate` in terms of both.
"""
