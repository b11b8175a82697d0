// identity: a program that knows its process id and the time, and holds a mutex
// that knows its owner. With an argument it keeps more: the size of the file "input", a
// seed from its inode, its times, the process id or the time, or the date as text.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

pid_t kept;
struct timespec began;
struct timeval day;
double seconds;
long size_of_input;

int main(int argc, char **argv) {
	pthread_mutexattr_t a;
	pthread_mutex_t m, r;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&m, &a);
	pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&r, &a);
	pthread_mutex_lock(&m);
	pthread_mutex_lock(&r);
	kept = getpid();
	clock_gettime(CLOCK_MONOTONIC, &began);
	gettimeofday(&day, 0);
	seconds = day.tv_sec + day.tv_usec * 1e-6;
	if (argc > 1) {
		struct stat st;
		stat("input", &st);
		if (!strcmp(argv[1], "size")) size_of_input = st.st_size;
		if (!strcmp(argv[1], "inode")) srand(st.st_ino);
		if (!strcmp(argv[1], "mtime")) srand(st.st_mtim.tv_sec ^ st.st_mtim.tv_nsec);
		memset(&st, 0, sizeof st);
		if (!strcmp(argv[1], "pid")) srand(getpid());
		if (!strcmp(argv[1], "time")) srand(time(0));
		if (!strcmp(argv[1], "minutes")) size_of_input = time(0) / 60;
	}
	int fd = open("gate", O_RDONLY);
	int bad = fd < 0 || kept != getpid() || pthread_mutex_lock(&r) || pthread_mutex_unlock(&r) || pthread_mutex_unlock(&r) || pthread_mutex_unlock(&m);
	printf("%s\n", bad ? "wrong" : "right");
	return bad;
}
