// Walks a tree with T threads: getdents64 and statx, nothing kept but sums.
// usage: walk T DIR
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct dirent64_raw {
	unsigned long long ino;
	long long off;
	unsigned short reclen;
	unsigned char type;
	char name[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static char **stack;
static long depth, room, waiting, threads;
static unsigned long long entries, bytes;

static void push(char *path) {
	pthread_mutex_lock(&mutex);
	if (depth == room)
		stack = realloc(stack, (room = 2 * room + 64) * sizeof *stack);
	stack[depth++] = path;
	if (waiting)
		pthread_cond_signal(&more);
	pthread_mutex_unlock(&mutex);
}

static char *pop(void) {
	char *path = NULL;
	pthread_mutex_lock(&mutex);
	while (!depth) {
		if (++waiting == threads) {
			pthread_cond_broadcast(&more);
			break;
		}
		pthread_cond_wait(&more, &mutex);
		if (waiting == threads)
			break;
		waiting--;
	}
	if (depth)
		path = stack[--depth];
	pthread_mutex_unlock(&mutex);
	return path;
}

static void *work(void *unused) {
	char *buffer = malloc(256 << 10), *path;
	unsigned long long n = 0, sum = 0;
	while ((path = pop())) {
		int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		long got;
		while (fd >= 0 && (got = syscall(SYS_getdents64, fd, buffer, 256 << 10)) > 0)
			for (long at = 0; at < got;) {
				struct dirent64_raw *d = (void *)(buffer + at);
				struct statx st;
				at += d->reclen;
				if (!strcmp(d->name, ".") || !strcmp(d->name, "..") || statx(fd, d->name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_BTIME, &st))
					continue;
				n++;
				sum += st.stx_size;
				if (S_ISDIR(st.stx_mode)) {
					char *below;
					if (asprintf(&below, "%s/%s", path, d->name) < 0)
						exit(1);
					push(below);
				}
			}
		if (fd >= 0)
			close(fd);
		free(path);
	}
	pthread_mutex_lock(&mutex);
	entries += n;
	bytes += sum;
	pthread_mutex_unlock(&mutex);
	return NULL;
}

int main(int argc, char **argv) {
	if (argc != 3) {
		fprintf(stderr, "usage: walk T DIR\n");
		return 2;
	}
	threads = atol(argv[1]);
	push(strdup(argv[2]));
	pthread_t *list = calloc(threads, sizeof *list);
	for (long i = 0; i < threads; i++)
		pthread_create(&list[i], NULL, work, NULL);
	for (long i = 0; i < threads; i++)
		pthread_join(list[i], NULL);
	printf("%llu entries, %llu bytes\n", entries, bytes);
	return 0;
}
