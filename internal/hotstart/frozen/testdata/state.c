// state: a program with much state. It opens "gate" when it has it, then checks
// that all of it is as it was, and prints what it reads from the gate.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANT(c) do { if (!(c)) { printf("wrong: line %d: %s (errno %d)\n", __LINE__, #c, errno); bad = 1; } } while (0)

static int bad, threads = 3;
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int go;
static atomic_int ready, done;
static __thread long mine;
static volatile sig_atomic_t usr1, alrm;

static void on_usr1(int s) { (void)s; usr1++; }
static void on_alrm(int s) { (void)s; alrm++; }

static void *work(void *arg) {
	mine = (long)arg;
	char name[16];
	snprintf(name, sizeof name, "worker-%ld", mine);
	pthread_setname_np(pthread_self(), name);
	double x = 1;
	for (int i = 0; i < 1000; i++) x = x * 1.0001 + mine;
	ready++;
	pthread_mutex_lock(&m);
	while (!go) pthread_cond_wait(&c, &m);
	pthread_mutex_unlock(&m);
	double y = 1;
	for (int i = 0; i < 1000; i++) y = y * 1.0001 + mine;
	char now[16];
	pthread_getname_np(pthread_self(), now, sizeof now);
	if (mine != (long)arg || x != y || strcmp(now, name)) bad = 1;
	done++;
	return 0;
}

int main(int argc, char **argv) {
	size_t size = (argc > 1 ? atol(argv[1]) : 64) << 20;
	uint64_t *big = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < size / 8; i++) big[i] = i * 2654435761u + 1;
	// A hole of zeros, memory without access, and memory that is only read.
	memset(big, 0, 1 << 20);
	char *none = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(none, 7, 1 << 20);
	mprotect(none, 1 << 20, PROT_NONE);
	int *shared = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	shared[0] = 41;
	pthread_t t[64];
	for (long i = 0; i < threads; i++) pthread_create(&t[i], 0, work, (void *)(i + 1));
	while (ready < threads) sched_yield();
	struct sigaction sa = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &sa, 0);
	signal(SIGALRM, on_alrm);
	signal(SIGPIPE, SIG_IGN);
	sigset_t blocked, was;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &blocked, 0);
	umask(027);
	int log = open("log", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	WANT(write(log, "before ", 7) == 7);
	int copy = dup(log);
	int fds[2];
	WANT(pipe2(fds, O_NONBLOCK) == 0);
	int ev = eventfd(3, EFD_NONBLOCK);
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0x1234567890ull};
	WANT(epoll_ctl(ep, EPOLL_CTL_ADD, ev, &e) == 0);
	int tmp = open(".", O_TMPFILE | O_RDWR, 0600);
	if (tmp >= 0) WANT(write(tmp, "scratch", 7) == 7);
	int shut[2][2];
	for (int i = 0; i < 2; i++) {
		WANT(socketpair(AF_UNIX, SOCK_STREAM | (i ? SOCK_NONBLOCK | SOCK_CLOEXEC : 0), 0, shut[i]) == 0);
		close(shut[i][!i]);
	}
	struct itimerval it = {.it_value = {1000, 0}};
	setitimer(ITIMER_REAL, &it, 0);
	char *brk0 = sbrk(0), *heap = malloc(100);
	strcpy(heap, "on the heap");
	printf("loaded ");
	double pi = acos(-1);

	int in = open("gate", O_RDONLY);

	WANT(in >= 0);
	for (size_t i = (1 << 20) / 8; i < size / 8; i++)
		if (big[i] != i * 2654435761u + 1) { WANT(!"memory"); break; }
	for (size_t i = 0; i < (1 << 20) / 8; i++) if (big[i]) { WANT(!"hole"); break; }
	WANT(mprotect(none, 1 << 20, PROT_READ) == 0 && none[0] == 7 && none[(1 << 20) - 1] == 7);
	WANT(shared[0] == 41);
	pid_t child = fork();
	if (!child) { shared[0]++; _exit(3); }
	int st;
	WANT(waitpid(child, &st, 0) == child && WEXITSTATUS(st) == 3 && shared[0] == 42);
	pthread_mutex_lock(&m);
	go = 1;
	pthread_cond_broadcast(&c);
	pthread_mutex_unlock(&m);
	for (int i = 0; i < threads; i++) WANT(pthread_join(t[i], 0) == 0);
	WANT(done == threads);
	WANT(kill(getpid(), SIGUSR1) == 0 && usr1 == 1);
	pthread_sigmask(SIG_SETMASK, 0, &was);
	WANT(sigismember(&was, SIGUSR2) && !sigismember(&was, SIGUSR1));
	for (int i = 0; i < 2; i++) {
		char c;
		int end = shut[i][i];
		WANT(read(end, &c, 1) == 0 && write(end, &c, 1) < 0 && errno == EPIPE);
		WANT(!!(fcntl(end, F_GETFL) & O_NONBLOCK) == i && !!fcntl(end, F_GETFD) == i);
	}
	WANT(signal(SIGPIPE, SIG_DFL) == SIG_IGN);
	WANT(umask(0) == 027);
	WANT(lseek(log, 0, SEEK_CUR) == 7 && write(copy, "after", 5) == 5 && lseek(log, 0, SEEK_CUR) == 12);
	char b[64] = {0};
	WANT(pread(log, b, 63, 0) == 12 && !strcmp(b, "before after"));
	WANT(fcntl(log, F_GETFD) == FD_CLOEXEC && fcntl(copy, F_GETFD) == 0);
	WANT(write(fds[1], "pipe", 4) == 4 && read(fds[0], b, 4) == 4 && !memcmp(b, "pipe", 4));
	WANT(fcntl(fds[0], F_GETFL) & O_NONBLOCK);
	struct epoll_event got;
	WANT(epoll_wait(ep, &got, 1, 0) == 1 && got.data.u64 == 0x1234567890ull);
	uint64_t n = 0;
	WANT(read(ev, &n, 8) == 8 && n == 3);
	if (tmp >= 0) WANT(lseek(tmp, 0, SEEK_CUR) == 7 && pread(tmp, b, 7, 0) == 7 && !memcmp(b, "scratch", 7));
	WANT(getitimer(ITIMER_REAL, &it) == 0 && it.it_value.tv_sec > 900);
	WANT(sbrk(0) == brk0 || sbrk(0) > (void *)heap);
	WANT(!strcmp(heap, "on the heap"));
	WANT(sbrk(1 << 20) != (void *)-1);
	WANT(pi == acos(-1));
	WANT(syscall(SYS_gettid) == getpid());
	char exe[4096] = {0};
	WANT(readlink("/proc/self/exe", exe, 4095) > 0 && strstr(exe, "state"));
	// The stack grows.
	volatile char *deep = __builtin_alloca(4 << 20);
	for (int i = 0; i < 4 << 20; i += 4096) deep[i] = 1;
	char line[256];
	ssize_t k = read(in, line, sizeof line - 1);
	line[k > 0 ? k : 0] = 0;
	printf("%s%s", bad ? "" : "right ", line);
	return bad ? 1 : 5;
}
