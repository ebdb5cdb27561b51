/* A wall clock that a test can set, for a process that it starts: preloaded, it stands in for that of the system.
 *
 * The file that HEADWAY_CLOCK names has three doubles: by how many microseconds the clock is off, by how many parts in a
 * million it is fast, and since when (microseconds since 1970).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *wanted;

__attribute__((constructor)) static void find(void)
{
    int file = open(getenv("HEADWAY_CLOCK"), O_RDONLY);
    wanted = mmap(NULL, 3 * sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (wanted == MAP_FAILED)
        abort();
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    int failed = syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) && wanted) {
        double now = at->tv_sec * 1e6 + at->tv_nsec / 1e3;
        long long ns = at->tv_nsec + (long long)((wanted[0] + (now - wanted[2]) * wanted[1] / 1e6) * 1e3);
        long long seconds = ns / 1000000000 - (ns % 1000000000 < 0);
        at->tv_sec += seconds;
        at->tv_nsec = ns - seconds * 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
