"""Where ledgers live. `memory://` is this process; engines that are shared come later, behind the same front ends."""
