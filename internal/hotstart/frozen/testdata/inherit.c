// inherit: a program that holds a mutex with priority inheritance when it opens "gate".
// With an argument another thread waits for the mutex.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t m;
static volatile int tid;

static void *waits(void *p) {
	tid = syscall(SYS_gettid);
	pthread_mutex_lock(&m);
	pthread_mutex_unlock(&m);
	return p;
}

// sleeps reports whether the other thread sleeps.
static int sleeps(void) {
	char path[64], b[512] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	int fd = open(path, O_RDONLY);
	if (read(fd, b, sizeof b - 1) < 0) return 0;
	close(fd);
	return strstr(b, ") S ") != 0;
}

int main(int argc, char **argv) {
	pthread_mutexattr_t a;
	pthread_t t;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
	pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
	if (pthread_mutex_init(&m, &a) || pthread_mutex_lock(&m)) return 2;
	if (argc > 1) {
		if (pthread_create(&t, 0, waits, 0)) return 3;
		while (!tid || !sleeps()) usleep(1000);
	}
	int fd = open("gate", O_RDONLY);
	int bad = fd < 0 || pthread_mutex_unlock(&m) || argc > 1 && pthread_join(t, 0) || pthread_mutex_lock(&m) || pthread_mutex_unlock(&m);
	printf("%s\n", bad ? "wrong" : "right");
	return bad;
}
