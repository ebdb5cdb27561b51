# Compiled as it is: the way of every call.
from headway.engines.redis.client.batching cimport loop_batcher, thread_batcher
