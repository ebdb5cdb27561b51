"""Gates of events on a server: `commands` are sent for a thread or a task, `listener` hears what other processes did.

`script/lua/once.lua` decides, one script call for each command; `codec` has its bytes, and `together` the commands of
tasks. `gate` is `base.Gate` in terms of all these.
"""
