/* ends: a program that opens "gate" when a thread of it has ended, and its tracer has not
 * waited for that. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int tid;

static void *work(void *p)
{
	tid = gettid();
	return p;
}

int main(void)
{
	pthread_t t;
	char path[64], b[256];
	if (pthread_create(&t, 0, work, 0)) return 2;
	for (;; usleep(1000)) {
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
		int fd = tid ? open(path, O_RDONLY) : -1;
		if (fd < 0) continue;
		long n = read(fd, b, sizeof b - 1);
		close(fd);
		b[n > 0 ? n : 0] = 0;
		if (strstr(b, ") Z ")) break;
	}
	return open("gate", O_RDONLY) < 0;
}
