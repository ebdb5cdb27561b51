# Compiled as it is: the way of every call that is denied.
