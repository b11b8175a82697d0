// fuzz: a program that does legal things at random before and after it opens "gate".
// usage: fuzz SEED BEFORE AFTER
//
// It prints the result of each, so that two executions can be compared. Nothing
// that it prints depends on addresses, process ids or time.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
static u64 state;
static u64 rnd(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state * 2685821657736338717ull; }
static u64 below(u64 n) { return (rnd() >> 11) % n; }

static int out = 1;
static void say(const char *f, ...) {
	char b[512];
	va_list a;
	va_start(a, f);
	int n = vsnprintf(b, sizeof b, f, a);
	va_end(a);
	if (write(out, b, n) != n) _exit(99);
}
#define SAY(name, r) do { long r_ = (long)(r); int e_ = r_ < 0 ? errno : 0; say("%s %ld %d\n", name, r_ < 0 ? -1 : r_, e_); } while (0)

// Memory: slots far from each other, and the protection of each of their pages.
enum { SLOTS = 8, MAX = 3000, P = 4096 };
static struct slot { char *at; int pages, shared, odd, wired; signed char prot[MAX]; char guard[MAX], nofork[MAX]; } slot[SLOTS];

static char *place(int i) { return (char *)0x200000000000 + ((u64)i << 32); }

static void fill(struct slot *s, int from, int n) {
	for (int i = from; i < from + n; i++)
		if (s->prot[i] == (PROT_READ | PROT_WRITE) && !s->guard[i]) {
			u64 *w = (u64 *)(s->at + (u64)i * P), x = rnd() | 1;
			for (int j = 0; j < P / 8; j++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; w[j] = x; }
		}
}

static u64 sum(struct slot *s, int child) {
	u64 h = 1469598103934665603ull;
	for (int i = 0; i < s->pages; i++)
		if (s->prot[i] > 0 && s->prot[i] & PROT_READ && !s->guard[i] && !(child && s->nofork[i])) {
			u64 *w = (u64 *)(s->at + (u64)i * P);
			for (int j = 0; j < P / 8; j++) h = (h ^ w[j]) * 1099511628211ull;
		} else h = h * 31 + 7;
	return h;
}

static void memory(void) {
	struct slot *s = &slot[below(SLOTS)];
	if (!s->at) {
		static const int sizes[] = {1, 16, 100, 600, 1500};
		int n = sizes[below(5)], i = s - slot;
		s->shared = below(8) == 0;
		char *p = mmap(place(i), (u64)n * P, PROT_READ | PROT_WRITE, (s->shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (p == MAP_FAILED) { say("mmap failed %d\n", errno); return; }
		memset(s->prot, PROT_READ | PROT_WRITE, n);
		memset(s->guard, 0, sizeof s->guard);
		memset(s->nofork, 0, sizeof s->nofork);
		s->at = p, s->pages = n, s->odd = s->shared;
		if (below(4)) fill(s, 0, n);
		say("slot %d of %d\n", i, n);
		return;
	}
	int from = below(s->pages), n = 1 + below(s->pages - from), i;
	if (below(3) == 0) from = 0, n = s->pages;
	char *at = s->at + (u64)from * P;
	u64 len = (u64)n * P;
	switch (below(s->shared ? 4 : 14)) {
	case 0: fill(s, from, n); break;
	case 1: say("sum %lx\n", sum(s, 0)); break;
	case 2: {
		static const int prots[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
		int prot = prots[below(4)], r = mprotect(at, len, prot);
		SAY("mprotect", r);
		for (i = from; i < from + n; i++) {
			if (s->prot[i] < 0) break; // the kernel stops at a hole
			s->prot[i] = prot;
		}
		s->odd = 1;
		break;
	}
	case 3:
		// Where the kernel has chosen the place, it gives the hole to another mapping.
		if (below(4) || s->shared || s->at != place(s - slot)) break;
		SAY("munmap", munmap(at, len));
		memset(s->prot + from, -1, n);
		memset(s->guard + from, 0, n);
		s->odd = 1;
		break;
	case 4: case 5: case 6: {
		static const int advice[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, 9, MADV_WILLNEED, MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, 20, 21, 22, 23, 25, MADV_NOHUGEPAGE, MADV_HUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_RANDOM, MADV_NORMAL, 24, 102, 103};
		int a = advice[below(sizeof advice / sizeof *advice)], r;
		struct iovec v = {at, len};
		if (a == 102 && s->wired) break; // it fails at the first page that is locked
		if (below(5) == 0 && a != 25) {
			int fd = syscall(SYS_pidfd_open, getpid(), 0);
			r = syscall(SYS_process_madvise, fd, &v, 1, a, 0) == (long)len ? 0 : -1;
			close(fd);
		} else r = madvise(at, len, a);
		if (a == 25) say("collapse\n"); // as the kernel finds room
		else say("madvise %d: %d %d\n", a, r, r ? errno : 0);
		if (a == MADV_FREE) madvise(at, len, MADV_DONTNEED); // or the content would be either
		if (a == 102 && (!r || errno == ENOMEM)) for (i = from; i < from + n; i++) if (s->prot[i] >= 0) s->guard[i] = 1;
		if (a == 103 && (!r || errno == ENOMEM)) memset(s->guard + from, 0, n);
		if (a == MADV_DONTFORK) memset(s->nofork + from, 1, n);
		if (a == MADV_DOFORK) memset(s->nofork + from, 0, n);
		if (((a <= 1 || (a >= 10 && a <= 19)) && n < s->pages) || a == 102) s->odd = 1;
		break;
	}
	case 7: SAY("mlock", below(2) ? mlock(at, len) : syscall(SYS_mlock2, at, len, MLOCK_ONFAULT)); s->odd = s->wired = 1; break;
	case 8: SAY("munlock", munlock(at, len)); s->odd = 1; break;
	case 9: case 10: case 11: {
		if (s->odd || s->pages > 2000) break;
		int bigger = s->pages + 1 + below(700);
		if (bigger > MAX) break;
		char *p = mremap(s->at, (u64)s->pages * P, (u64)bigger * P, below(2) ? MREMAP_MAYMOVE : 0);
		say("grow %d to %d: %d\n", s->pages, bigger, p == MAP_FAILED ? errno : 0);
		if (p == MAP_FAILED) break;
		memset(s->prot + s->pages, PROT_READ | PROT_WRITE, bigger - s->pages);
		memset(s->guard + s->pages, 0, bigger - s->pages);
		memset(s->nofork + s->pages, s->nofork[0], bigger - s->pages);
		s->at = p, s->pages = bigger;
		break;
	}
	case 12: {
		if (s->odd) break;
		int size = 1 + below(s->pages);
		char *to = place(SLOTS + (s - slot)) + (below(16) << 24), *p;
		if (to == s->at) break;
		if (below(2)) size = s->pages;
		p = mremap(s->at, (u64)s->pages * P, (u64)size * P, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		say("move %d as %d: %d\n", s->pages, size, p == MAP_FAILED ? errno : 0);
		if (p != MAP_FAILED) s->at = p, s->pages = size;
		break;
	}
	case 13: {
		if (s->odd) break;
		char *p = mremap(s->at, (u64)s->pages * P, (u64)s->pages * P, MREMAP_MAYMOVE | 4, NULL);
		if (p == MAP_FAILED) { say("dontunmap %d\n", errno); break; }
		struct slot old = *s;
		say("dontunmap %lx %lx\n", sum(&old, 0), (s->at = p, sum(s, 0)));
		munmap(old.at, (u64)old.pages * P);
		break;
	}
	}

}

static void forked(void) {
	int fds[2];
	if (pipe(fds)) return;
	struct slot *s = &slot[below(SLOTS)];
	pid_t c = fork();
	if (!c) {
		u64 h = 0;
		for (int i = 0; i < SLOTS; i++) if (slot[i].at) h = h * 31 + sum(&slot[i], 1);
		if (s->at && !s->shared && !s->nofork[0] && s->prot[0] == 3 && !s->guard[0]) {
			h = h * 31 + madvise(s->at, P, MADV_DONTNEED);
			h = h * 31 + *(u64 *)s->at;
		}
		if (write(fds[1], &h, 8) != 8) _exit(9);
		_exit(below(50));
	}
	int st;
	u64 h = 0;
	close(fds[1]);
	if (read(fds[0], &h, 8) != 8) h = 1;
	close(fds[0]);
	waitpid(c, &st, 0);
	say("child %lx %x\n", h, st);
}

enum { FILES = 6 };
static int file[FILES], kind[FILES];
static void files(void) {
	int i = below(FILES), *f = &file[i];
	char name[16], b[256];
	static const int flags[] = {O_RDWR, O_RDWR | O_APPEND, O_RDWR | O_CLOEXEC, O_RDONLY};
	if (!*f) {
		kind[i] = below(3);
		if (kind[i] < 2) {
			snprintf(name, sizeof name, "f%d", i);
			*f = open(name, O_CREAT | flags[below(4)], 0640);
		} else *f = open(".", O_TMPFILE | O_RDWR, 0600);
		int g = fcntl(*f, F_DUPFD, 100 + 10 * i);
		close(*f);
		*f = g;
		say("open %d\n", g);
		return;
	}
	int n;
	switch (below(7)) {
	case 0: case 1:
		for (n = 0; n < 200; n++) b[n] = rnd();
		SAY("write", write(*f, b, 1 + below(200)));
		break;
	case 2: {
		u64 h = 0;
		memset(b, 0, sizeof b);
		SAY("read", n = read(*f, b, 1 + below(200)));
		for (int j = 0; j < n; j++) h = h * 31 + b[j];
		say("%lx\n", h);
		break;
	}
	case 3: SAY("seek", lseek(*f, below(1000), SEEK_SET)); break;
	case 4: SAY("truncate", ftruncate(*f, below(2000))); break;
	case 5: { int d = fcntl(*f, F_DUPFD, 160 + below(8)); SAY("dup", d); SAY("at", lseek(d, 1, SEEK_CUR)); if (below(2)) close(d); break; }
	case 6: { struct stat st; fstat(*f, &st); say("stat %ld %o at %ld flags %x %x\n", (long)st.st_size, st.st_mode, (long)lseek(*f, 0, SEEK_CUR), fcntl(*f, F_GETFL), fcntl(*f, F_GETFD)); if (below(4) == 0) { close(*f); *f = 0; } break; }
	}
}

static int pipes[2], event, ep, timer;
static void queues(void) {
	char b[5000];
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.u64 = rnd()}, got[4];
	u64 v;
	int n;
	if (!pipes[0]) { SAY("pipe", pipe2(pipes, O_NONBLOCK)); return; }
	if (!event) { event = eventfd(below(4), EFD_NONBLOCK | (below(2) ? EFD_SEMAPHORE : 0)); return; }
	if (!ep) { ep = epoll_create1(0); return; }
	if (!timer) { timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK); struct itimerspec t = {{5, 0}, {500000, 0}}; timerfd_settime(timer, 0, &t, 0); return; }
	switch (below(9)) {
	case 0: case 1: n = 1 + below(5000); for (int i = 0; i < n; i++) b[i] = rnd(); SAY("pipe write", write(pipes[1], b, n)); break;
	case 2: { u64 h = 0; SAY("pipe read", n = read(pipes[0], b, 1 + below(5000))); for (int i = 0; i < n; i++) h = h * 31 + b[i]; say("%lx\n", h); break; }
	case 3: v = below(10); SAY("event write", write(event, &v, 8)); break;
	case 4: v = 0; SAY("event read", read(event, &v, 8)); say("%lx\n", v); break;
	case 5: SAY("epoll add", epoll_ctl(ep, below(3) ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, below(2) ? event : pipes[0], &e)); break;
	case 6: SAY("epoll del", epoll_ctl(ep, EPOLL_CTL_DEL, below(2) ? event : pipes[0], 0)); break;
	case 7: { u64 h = 0; n = epoll_wait(ep, got, 4, 0); for (int i = 0; i < n; i++) h += got[i].data.u64 * got[i].events; say("epoll %d %lx\n", n, h); break; }
	case 8: { struct itimerspec t; timerfd_gettime(timer, &t); say("timer %d %ld %ld\n", t.it_value.tv_sec > 400000, (long)t.it_interval.tv_sec, (long)read(timer, &v, 8)); break; }
	}
}

static volatile int came[64];
static void handler(int s) { came[s]++; }
static char stack[65536];
static void signals(void) {
	int s = below(2) ? SIGUSR1 : SIGRTMIN + (int)below(4);
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, s);
	switch (below(9)) {
	case 0: { struct sigaction a = {.sa_handler = handler, .sa_flags = below(2) ? SA_RESTART : SA_ONSTACK}; sigemptyset(&a.sa_mask); sigaction(s, &a, 0); break; }
	case 1: signal(s, SIG_IGN); break;
	case 2: sigprocmask(SIG_BLOCK, &set, 0); break;
	case 3: case 4: { struct sigaction a; sigaction(s, 0, &a); sigprocmask(SIG_BLOCK, 0, &old); // another thread would take it at its own time
		if (a.sa_handler != SIG_DFL) { if (below(2) || sigismember(&old, s)) raise(s); else kill(getpid(), s); } break; }
	case 5: case 6: { struct sigaction a; sigaction(s, 0, &a); if (a.sa_handler == SIG_DFL) signal(s, handler); sigprocmask(SIG_UNBLOCK, &set, 0); break; }
	case 7: sigpending(&set); sigprocmask(SIG_BLOCK, 0, &old); for (int i = 1; i < 64; i++) say("%d%d%d", came[i], sigismember(&set, i), sigismember(&old, i)); say("\n"); break;
	case 8: { stack_t st = {.ss_sp = stack, .ss_size = sizeof stack}, was; sigaltstack(below(2) ? &st : 0, &was); say("altstack %d %zu\n", was.ss_flags, was.ss_size); break; }
	}
}

static void process(void) {
	struct rlimit r;
	struct itimerval t = {{0, 0}, {800000, 0}};
	char name[32] = {0};
	static char *heap[8];
	static size_t size[8];
	switch (below(11)) {
	case 0: getrlimit(RLIMIT_NOFILE, &r); r.rlim_cur = 200 + below(300); SAY("rlimit", setrlimit(RLIMIT_NOFILE, &r)); break;
	case 1: getrlimit(RLIMIT_NOFILE, &r); say("nofile %lu\n", (unsigned long)r.rlim_cur); getrlimit(RLIMIT_CORE, &r); say("core %lu\n", (unsigned long)r.rlim_cur); break;
	case 2: say("umask %o\n", umask(below(0100))); break;
	case 3: snprintf(name, sizeof name, "name %d", (int)below(100)); prctl(PR_SET_NAME, name); break;
	case 4: prctl(PR_GET_NAME, name); say("name %s\n", name); break;
	case 5: setitimer(ITIMER_REAL, &t, 0); break;
	case 6: getitimer(ITIMER_REAL, &t); say("itimer %d\n", t.it_value.tv_sec > 700000); break;
	case 7: { int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD}; fesetround(modes[below(3)]); break; }
	case 8: { volatile double x = 1, y = 3; say("third %a %d\n", x / y, fegetround()); break; }
	case 9: {
		static char *top;
		static long grown; // pages below top that the C library does not use
		long n = (long)below(40) - 10;
		if (sbrk(0) != top) grown = 0;
		if (n < -grown) n = 1;
		char *b = sbrk(n * P);
		top = sbrk(0), grown += n;
		for (char *p = b; p < top; p += P) say("%d", *p), *p = 1;
		say("\n");
		break;
	}
	case 10: {
		int i = below(8);
		size_t n = 1 + below(400000);
		heap[i] = realloc(heap[i], n);
		u64 h = 0;
		for (size_t j = 0; j < (n < size[i] ? n : size[i]); j++) h = h * 31 + heap[i][j];
		memset(heap[i], rnd(), n);
		size[i] = n;
		say("realloc %lx\n", h);
		break;
	}
	}
}

enum { THREADS = 3 };
static pthread_t thread[THREADS];
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int order[THREADS], alive[THREADS];
static __thread u64 mine;
static void *work(void *arg) {
	long i = (long)arg;
	mine = i * 1000;
	pthread_mutex_lock(&m);
	for (;;) {
		while (!order[i]) pthread_cond_wait(&c, &m);
		int o = order[i];
		mine++;
		if (o == 2) memory();
		say("thread %ld: %lu\n", i, (unsigned long)mine);
		order[i] = 0;
		pthread_cond_broadcast(&c);
		if (o == 3) break;
	}
	pthread_mutex_unlock(&m);
	return 0;
}

static void threads(void) {
	long i = below(THREADS);
	if (!alive[i]) {
		alive[i] = 1;
		pthread_create(&thread[i], 0, work, (void *)i);
		return;
	}
	int o = 1 + below(3);
	pthread_mutex_lock(&m);
	order[i] = o;
	pthread_cond_broadcast(&c);
	while (order[i]) pthread_cond_wait(&c, &m);
	pthread_mutex_unlock(&m);
	if (o == 3) pthread_join(thread[i], 0), alive[i] = 0;
}

static void steps(long n) {
	for (long i = 0; i < n; i++)
		switch (below(16)) {
		case 0: case 1: case 2: case 3: case 4: case 5: case 6: memory(); break;
		case 7: forked(); break;
		case 8: case 9: files(); break;
		case 10: case 11: queues(); break;
		case 12: signals(); break;
		case 13: process(); break;
		default: threads(); break;
		}
}

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	state = strtoull(argv[1], 0, 10) * 0x9e3779b97f4a7c15ull | 1;
	for (int i = 0; i < 8; i++) rnd();
	steps(atol(argv[2]));
	int in = open("gate", O_RDONLY);
	char b[64];
	SAY("gate", read(in, b, sizeof b));
	close(in);
	steps(atol(argv[3]));
	for (int i = 0; i < SLOTS; i++) if (slot[i].at) say("slot %d %lx\n", i, sum(&slot[i], 0));
	return below(100);
}
