# Compiled as it is: the connector of every call that is denied.
