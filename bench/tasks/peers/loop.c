// Executes a program N times from T threads, as fast as posix_spawn allows.
// usage: loop N T PROGRAM [ARGUMENT...]
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;
static char **command;

static void *work(void *count) {
	for (long i = *(long *)count; i > 0; i--) {
		pid_t pid;
		int status;
		if (posix_spawn(&pid, command[0], NULL, NULL, command, environ) != 0 || waitpid(pid, &status, 0) != pid || status != 0)
			exit(1);
	}
	return NULL;
}

int main(int argc, char **argv) {
	if (argc < 4) {
		fprintf(stderr, "usage: loop N T PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	long n = atol(argv[1]), threads = atol(argv[2]);
	command = argv + 3;
	pthread_t *list = calloc(threads, sizeof *list);
	long *counts = calloc(threads, sizeof *counts);
	for (long i = 0; i < threads; i++) {
		counts[i] = n / threads + (i < n % threads);
		if (pthread_create(&list[i], NULL, work, &counts[i]) != 0)
			return 1;
	}
	for (long i = 0; i < threads; i++)
		pthread_join(list[i], NULL);
	return 0;
}
