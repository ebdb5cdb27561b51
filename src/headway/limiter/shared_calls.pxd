# Compiled as it is: the connector of every call to a shared engine.
from headway.flows.drive cimport need_loop
from headway.engines.redis.client.batching cimport loop_batcher, thread_batcher
from headway.limiter.shared_permits cimport new_shared_permit
