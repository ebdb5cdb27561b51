# Compiled as it is: the way of every call to a shared engine.
from headway.flows.drive cimport need_loop
from headway.limiter.shared_permits cimport new_shared_permit
