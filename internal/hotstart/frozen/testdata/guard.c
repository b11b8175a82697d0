// guard: what madvise(2), mremap(2) and mlock(2) do to large memory that was
// filled before "gate" was opened. It prints results that depend on nothing else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { P = 4096, N = 512, BLOCKS = 24 };
static char *block[BLOCKS];
static char *at(int i) { return (char *)0x210000000000 + ((uint64_t)i << 30); }

static unsigned sum(char *p, size_t n) {
	unsigned h = 1;
	for (size_t i = 0; i < n; i += 64) h = h * 31 + p[i];
	return h;
}

static void show(const char *name, long r) { printf("%s: %ld %d\n", name, r < 0 ? -1 : r, r < 0 ? errno : 0); fflush(stdout); }

static volatile int writing = 1;
static void *writer(void *arg) {
	uint64_t *w = arg, n = 0;
	// Once at least, also where the thread begins late.
	do for (int i = 0; i < N * P / 8; i += 512) w[i] = ++n;
	while (writing);
	return (void *)n;
}

static long locked(void) {
	char line[256];
	long n = -1;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f)) sscanf(line, "VmLck: %ld", &n);
	if (f) fclose(f);
	return n;
}

int main(void) {
	for (int i = 0; i < BLOCKS; i++) {
		block[i] = mmap(at(i), N * P, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		for (size_t j = 0; j < N * P; j++) block[i][j] = j * 7 + i;
	}
	// Zeros that were read come first, far from the content.
	size_t sparse = 600ul << 20;
	char *far = mmap(at(BLOCKS), sparse, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0), zero = 0;
	madvise(far, sparse, MADV_NOHUGEPAGE);
	for (size_t j = 0; j < 300ul << 20; j += P) zero |= far[j];
	memset(far + sparse - (1 << 20), 5, 1 << 20);
	madvise(block[0], N * P, MADV_WIPEONFORK);
	madvise(block[1], N * P, MADV_DONTFORK);
	show("mlock", mlock(block[2], N * P));
	char *guarded = mmap(0, 16 * P, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int guards = madvise(guarded, P, 102);
	munmap(block[3] + 100 * P, 10 * P);
	int fds[2];
	if (pipe(fds) || write(fds[1], "in the pipe", 11) != 11) return 1;

	int in = open("gate", O_RDONLY);

	char text[32] = {0};
	show("pipe", read(fds[0], text, 31)), puts(text);
	printf("far %d %u\n", zero, sum(far + sparse - (1 << 20), 1 << 20));
	int status;
	pid_t c = fork();
	if (!c) _exit(sum(block[0], N * P) == sum(far, N * P) ? 3 : 4);
	waitpid(c, &status, 0), show("wiped", status);
	c = fork();
	if (!c) { volatile char x = block[1][0]; _exit(x); }
	waitpid(c, &status, 0), show("not forked", status & 0x7f);
	printf("locked %ld\n", locked());
	show("discard locked", madvise(block[2], N * P, MADV_DONTNEED));
	c = fork();
	if (!c) { if (!guards) guarded[0] = 1; _exit(guards != 0); }
	waitpid(c, &status, 0), show("guard page", guards ? 0 : status & 0x7f);

	show("discard with a hole", madvise(block[3], N * P, MADV_DONTNEED));
	printf("%u %u\n", sum(block[3], 100 * P), sum(block[3] + 110 * P, (N - 110) * P));
	struct iovec v[2] = {{block[4], 10 * P}, {block[4] + 20 * P, 10 * P}};
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	show("process_madvise", syscall(SYS_process_madvise, self, v, 2, MADV_DONTNEED, 0));
	printf("%u\n", sum(block[4], N * P));
	show("wipe", madvise(block[5], N * P / 2, MADV_WIPEONFORK));
	printf("%u\n", sum(block[5], N * P));
	c = fork();
	if (!c) _exit(block[5][1] == 0 && block[5][N * P - 1] != 0);
	waitpid(c, &status, 0), show("wiped half", status);
	show("remove", madvise(block[6], N * P, MADV_REMOVE));
	show("free", madvise(block[6], N * P, MADV_FREE));
	show("populate", madvise(block[7], N * P, 23));
	show("dontfork", madvise(block[7], N * P, MADV_DONTFORK));
	show("install guards", madvise(block[8], 8 * P, 102));
	show("remove guards", madvise(block[8], 8 * P, 103));
	printf("%u\n", sum(block[8], N * P));
	show("grow in place", mremap(block[9], N * P, 2 * N * P, 0) == block[9] ? 0 : -1);
	printf("%u\n", sum(block[9], 2 * N * P));
	show("no room", (mmap(block[10] + N * P, P, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), mremap(block[10], N * P, 2 * N * P, 0) == MAP_FAILED ? -1 : 0));
	char *p = mremap(block[10], N * P, 2 * N * P, MREMAP_MAYMOVE);
	printf("%u\n", sum(p, 2 * N * P));
	p = mremap(block[11], N * P, N * P, MREMAP_MAYMOVE | 4, NULL);
	show("leave in place", p == MAP_FAILED ? -1 : 0);
	printf("%u %u\n", sum(p, N * P), sum(block[11], N * P));
	madvise(block[12] + 50 * P, 50 * P, MADV_DONTNEED);
	p = mremap(block[12], N * P, N * P, MREMAP_MAYMOVE | MREMAP_FIXED, at(40));
	show("move discarded", p == MAP_FAILED ? -1 : 0);
	printf("%u\n", p == MAP_FAILED ? 0 : sum(p, N * P));
	p = mremap(block[13], N * P, N * P / 2, MREMAP_MAYMOVE | MREMAP_FIXED, at(41));
	printf("%u\n", sum(p, N * P / 2));
	p = mremap(block[14], N * P, 3 * N * P, MREMAP_MAYMOVE | MREMAP_FIXED, at(42));
	printf("%u\n", sum(p, 3 * N * P));
	show("overlap", mremap(block[15], N * P, 2 * N * P, MREMAP_MAYMOVE | MREMAP_FIXED, block[15] + P) == MAP_FAILED ? -1 : 0);
	show("mlock", mlock(block[16], N * P));
	printf("locked %ld\n", locked());
	show("discard locked", madvise(block[16], N * P, MADV_DONTNEED));
	show("discard locked", madvise(block[16], N * P, 24));
	printf("%u\n", sum(block[16], N * P));
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register reg = {.range = {(uintptr_t)block[17], N * P}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	int u = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
	if (u >= 0) show("userfault", ioctl(u, UFFDIO_API, &api)), show("register", ioctl(u, UFFDIO_REGISTER, &reg));
	printf("%u\n", sum(block[17], N * P));
	// A thread writes while another has the memory converted below it.
	for (int i = 18; i < 22; i++) {
		pthread_t t;
		void *last;
		writing = 1;
		pthread_create(&t, 0, writer, block[i]);
		usleep(3000);
		show("wipe", madvise(block[i], N * P, MADV_WIPEONFORK));
		usleep(1000);
		writing = 0;
		pthread_join(t, &last);
		uint64_t n = (uint64_t)last;
		for (int j = N * P / 8 - 512; j >= 0; j -= 512, n--)
			if (((uint64_t *)block[i])[j] != n) { printf("a write was lost\n"); break; }
	}
	munmap(far, sparse);
	show("mlockall", mlockall(MCL_CURRENT));
	printf("%u\n", sum(block[22], N * P));
	show("discard locked", madvise(block[22], N * P, MADV_DONTNEED));
	char b[64];
	show("gate", read(in, b, sizeof b));
	return 7;
}
