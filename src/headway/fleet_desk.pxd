# Compiled as it is: the way of every call to a shared engine.
