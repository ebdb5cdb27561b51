cpdef bint take_lock(lock, list mine, timeout=*) except -1
