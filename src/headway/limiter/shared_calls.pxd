# Compiled as it is: the way of every call to a shared engine.
from headway.drive cimport need_loop
from headway.engines.redis.lanes cimport lane_of_tasks, lane_of_threads
from headway.fleet_permit cimport new_fleet_permit
