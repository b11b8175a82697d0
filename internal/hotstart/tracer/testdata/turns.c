// Threads that hand work to each other in all the ways that a tool may, and print the
// order in which they did it. On a machine with several processors the order differs
// from one execution to the next.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N = 4, ROUNDS = 200 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t sem;
static char order[N * ROUNDS * 4 + 1];
static int used, pipes[2];
static atomic_int flag;

static void note(int id) {
	pthread_mutex_lock(&lock);
	if (used < (int)sizeof order - 1)
		order[used++] = 'a' + id;
	pthread_mutex_unlock(&lock);
}

static void *locks(void *p) {
	int id = (int)(long)p;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < ROUNDS; i++) {
		char *m = malloc(100 + 50 * id + i);
		note(id);
		memset(m, i, 100);
		if (i % 16 == id)
			usleep(100);
		if (i % 8 == id)
			sched_yield();
		free(m);
	}
	return NULL;
}

// timed waits for what does not come, and then for what comes.
static void *timed(void *p) {
	int id = (int)(long)p;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 2;
	pthread_mutex_lock(&lock);
	while (pthread_cond_timedwait(&turn, &lock, &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&lock);
	note(id);
	sem_wait(&sem);
	note(id);
	return NULL;
}

static void *reads(void *p) {
	char c;
	while (read(pipes[0], &c, 1) == 1)
		note(c - 'a');
	return p;
}

static void *spins(void *p) {
	while (!atomic_load(&flag))
		;
	note((int)(long)p);
	return p;
}

static void run(void *(*f)(void *), void (*meanwhile)(void)) {
	pthread_t t[N];
	for (long i = 0; i < N; i++)
		if (pthread_create(&t[i], NULL, f, (void *)i))
			exit(3);
	if (meanwhile)
		meanwhile();
	for (int i = 0; i < N; i++)
		pthread_join(t[i], NULL);
	printf("%s\n", order);
	memset(order, 0, sizeof order);
	used = 0;
}

static void post(void) {
	for (int i = 0; i < N; i++)
		sem_post(&sem);
}

static void writes(void) {
	for (int i = 0; i < 20; i++) {
		usleep(10);
		if (write(pipes[1], "abcd" + i % N, 1) != 1)
			exit(4);
	}
	close(pipes[1]);
}

static void *sets(void *p) {
	if (p) {
		usleep(1000);
		atomic_store(&flag, 1);
		return p;
	}
	return spins(p);
}

int main(int argc, char **argv) {
	int all = argc < 2;
	pthread_barrier_init(&barrier, NULL, N);
	sem_init(&sem, 0, 0);
	if (pipe(pipes))
		return 2;
	if (all || strstr(argv[1], "locks"))
		run(locks, NULL);
	if (all || strstr(argv[1], "timed"))
		run(timed, post);
	if (all || strstr(argv[1], "reads"))
		run(reads, writes);
	if (all || strstr(argv[1], "spins"))
		run(sets, NULL);
	return 0;
}
