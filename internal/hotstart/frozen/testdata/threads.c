// threads: a program whose threads allocate memory side by side before it opens "gate".
// Some have ended by then, and one waits.
#define _GNU_SOURCE
#include <cpuid.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 3, ROUNDS = 300 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t more;
static char *kept[N * ROUNDS + 1];
static int used;

// processor leaves the number of the processor on the stack.
static __attribute__((noinline)) unsigned processor(void) {
	volatile unsigned r[64];
	unsigned a, b, c, d;
	__cpuid(1, a, b, c, d);
	for (int i = 0; i < 64; i++) r[i] = b;
	return r[5];
}

static void keep(int size) {
	char *p = malloc(size);
	memset(p, 1, size);
	pthread_mutex_lock(&lock);
	kept[used++] = p;
	pthread_mutex_unlock(&lock);
}

static void *works(void *p) {
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < ROUNDS; i++) keep(1000 + 100 * (long)p + i % 50);
	return processor() ? p : 0;
}

static void *waits(void *p) {
	sem_wait(&more);
	keep(10);
	return p;
}

int main(void) {
	pthread_t t[N], w;
	pthread_barrier_init(&barrier, 0, N);
	sem_init(&more, 0, 0);
	if (pthread_create(&w, 0, waits, 0)) return 2;
	for (long i = 0; i < N; i++)
		if (pthread_create(&t[i], 0, works, (void *)i)) return 2;
	for (int i = 0; i < N; i++) pthread_join(t[i], 0);
	int fd = open("gate", O_RDONLY);
	sem_post(&more);
	int bad = fd < 0 || pthread_join(w, 0) || used != N * ROUNDS + 1;
	for (int i = 0; i < used; i++) bad |= !kept[i][0];
	printf("%s\n", bad ? "wrong" : "right");
	return bad;
}
