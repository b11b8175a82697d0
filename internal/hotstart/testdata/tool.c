/* A stand-in for a tool that loads an index and then reads its input.
 *
 * usage: tool [-m MIB] [-t THREADS] [-l LOG] [-s] [-b] [-c] [-p TEXT] [-i INDEX] INPUT
 *
 *   -m MIB      the "index": so much memory, filled with pseudo-random numbers
 *   -t THREADS  so many further threads sleep while the input is opened
 *   -l LOG      keep LOG open and write to it before and after the stop
 *   -s          install a seccomp filter of its own (getppid fails with EPERM)
 *   -b          block SIGUSR2
 *   -c          keep a child process
 *   -p TEXT     print TEXT before the input is opened
 *   -i INDEX    read INDEX and print its first line in the end
 *   -a          keep what stat(2) returns for INDEX before it is read
 *   -D FILE     open FILE for reading and writing, and read its first line: the index
 *   -w          append to it
 *   -k          see whether there is INDEX at the beginning
 *   -r          open the input first, then load: for ready: read
 *   -S          keep the size that the input has at the beginning
 *   -G          keep whether the input has more than 1000 bytes at the beginning
 *   -g          look at the input at the beginning, and keep nothing of it
 *   -P DIR      keep counters in DIR/PID, as a Java virtual machine does
 *   -o          open the input at the beginning, and close it
 *
 * Each line of the input is a command; the answer goes to stdout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (16UL << 20)

static void *sleeper(void *arg) { for (;;) pause(); return arg; }

static void *answer(void *arg) { *(int *)arg = 42; return NULL; }

static void filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof code / sizeof code[0], code };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) { perror("seccomp"); exit(9); }
}

static int all_zero(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++) if (p[i]) return 0;
	return 1;
}

/* glance looks at a file, and keeps nothing of it. */
static void glance(const char *path)
{
	struct stat st;
	stat(path, &st);
	explicit_bzero(&st, sizeof st);
}

static char counters[4096];
static struct stat of_index;

static void uncount(void) { unlink(counters); }

/* count maps a file of its own in a directory, until the end. */
static void count(const char *dir)
{
	snprintf(counters, sizeof counters, "%s/%d", dir, getpid());
	int fd = open(counters, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || ftruncate(fd, 4096) || mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED) { perror(counters); exit(9); }
	close(fd);
	atexit(uncount);
}

int main(int argc, char **argv)
{
	long mib = 0, threads = 0;
	const char *log = NULL, *index = NULL;
	const char *settings = NULL;
	const char *kept = NULL;
	int opt, writes = 0, checks = 0, early = 0, looks = 0, tries = 0, stats = 0;
	long size = -1;
	FILE *in = NULL;
	while ((opt = getopt(argc, argv, "m:t:l:sbcp:i:akrSgoR:P:D:wG")) != -1) switch (opt) {
		case 'm': mib = atol(optarg); break;
		case 't': threads = atol(optarg); break;
		case 'l': log = optarg; break;
		case 's': filter(); break;
		case 'b': { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); sigprocmask(SIG_BLOCK, &s, NULL); break; }
		case 'c': if (!fork()) { for (;;) pause(); } break;
		case 'p': printf("%s\n", optarg); fflush(stdout); break;
		case 'i': index = optarg; break;
		case 'D': kept = optarg; break;
		case 'w': writes = 1; break;
		case 'a': stats = 1; break;
		case 'k': checks = 1; break;
		case 'r': early = 1; break;
		case 'S': looks = 1; break;
		case 'g': looks = 2; break;
		case 'G': looks = 3; break;
		case 'o': tries = 1; break;
		case 'R': settings = optarg; break;
		case 'P': count(optarg); break;
		default: return 2;
	}
	if (optind >= argc) { fprintf(stderr, "no input\n"); return 2; }
	if (checks) { FILE *f = fopen(index, "r"); if (!f) { perror(index); return 1; } fclose(f); }
	if (looks == 2) glance(argv[optind]);
	if (looks == 1) { struct stat st; if (!stat(argv[optind], &st)) size = st.st_size; }
	if (looks == 3) { struct stat st; stat(argv[optind], &st); size = st.st_size > 1000; explicit_bzero(&st, sizeof st); }
	if (tries) { FILE *f = fopen(argv[optind], "r"); if (!f || fgetc(f) == EOF) { perror(argv[optind]); return 1; } fclose(f); }
	if (early && !(in = fopen(argv[optind], "r"))) { perror(argv[optind]); return 1; }

	long blocks = mib << 20 >> 24, last = mib << 20 & (BLOCK - 1) ? 1 : 0;
	uint64_t **memory = calloc(blocks + last + 1, sizeof *memory), x = 88172645463325252ULL;
	for (long i = 0; i < blocks + last; i++) {
		memory[i] = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (size_t j = 0; j < BLOCK / 8; j++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; memory[i][j] = x; }
	}
	char *grown = malloc(32 << 20);
	memset(grown, 7, 32 << 20);
	char first[256] = "";
	if (index) {
		if (stats && stat(index, &of_index)) { perror(index); return 1; }
		FILE *f = fopen(index, "r");
		if (!f || !fgets(first, sizeof first, f)) { perror(index); return 1; }
		fclose(f);
	}
	if (kept) {
		FILE *f = fopen(kept, "r+");
		if (!f || !fgets(first, sizeof first, f)) { perror(kept); return 1; }
		if (writes) { fseek(f, 0, SEEK_END); fputs("more\n", f); }
		fclose(f);
	}
	char set[256] = "none\n";
	if (settings) {
		FILE *f = fopen(settings, "r");
		if (f && !fgets(set, sizeof set, f)) return 1;
		if (f) fclose(f);
	}
	FILE *lf = NULL;
	if (log) {
		if (!(lf = fopen(log, "w"))) { perror(log); return 1; }
		fprintf(lf, "before\n");
		fflush(lf);
	}
	for (long i = 0; i < threads; i++) { pthread_t t; pthread_create(&t, NULL, sleeper, NULL); }
	fprintf(stderr, "loaded %ld MiB\n", mib);

	if (!in && !(in = fopen(argv[optind], "r"))) { perror(argv[optind]); return 1; }
	char line[4096];
	while (fgets(line, sizeof line, in)) {
		line[strcspn(line, "\n")] = 0;
		char *arg = strchr(line, ' ');
		if (arg) *arg++ = 0;
		if (!strcmp(line, "sum")) {
			uint64_t s = 0;
			for (long i = 0; i < blocks + last; i++) for (size_t j = 0; j < BLOCK / 8; j += 64) s = s * 31 + memory[i][j];
			printf("sum %016lx\n", s);
		} else if (!strcmp(line, "write")) {
			for (long i = 0; i < blocks; i++) for (size_t j = 0; j < BLOCK / 8; j += 512) memory[i][j] ^= 0x5555;
			printf("written\n");
		} else if (!strcmp(line, "env")) printf("env %s=%s\n", arg, getenv(arg) ? getenv(arg) : "(none)");
		else if (!strcmp(line, "cwd")) { char b[4096]; printf("cwd %s\n", getcwd(b, sizeof b)); }
		else if (!strcmp(line, "umask")) { mode_t m = umask(0); umask(m); printf("umask %03o\n", m); }
		else if (!strcmp(line, "nofile")) { struct rlimit r; getrlimit(RLIMIT_NOFILE, &r); printf("nofile %lu\n", (unsigned long)r.rlim_cur); }
		else if (!strcmp(line, "mask")) { sigset_t s; sigprocmask(SIG_SETMASK, NULL, &s); printf("SIGUSR2 %s\n", sigismember(&s, SIGUSR2) ? "blocked" : "open"); }
		else if (!strcmp(line, "getppid")) printf("getppid %s\n", syscall(SYS_getppid) == -1 ? "refused" : "allowed");
		else if (!strcmp(line, "ids")) {
			/* An error-checking mutex and raise(3) rely on the thread id that the C library keeps. */
			pthread_mutexattr_t a; pthread_mutex_t m;
			pthread_mutexattr_init(&a); pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK); pthread_mutex_init(&m, &a);
			int ok = !pthread_mutex_lock(&m) && pthread_mutex_lock(&m) == EDEADLK && !pthread_mutex_unlock(&m);
			signal(SIGUSR1, SIG_IGN);
			ok = ok && !raise(SIGUSR1) && m.__data.__owner == 0;
			pthread_mutex_lock(&m);
			printf("ids %s leader %d\n", ok && m.__data.__owner == syscall(SYS_gettid) ? "right" : "wrong", getsid(0) == getpid());
			pthread_mutex_unlock(&m);
		} else if (!strcmp(line, "grow")) {
			grown = realloc(grown, 256 << 20);
			int kept = grown[0] == 7 && grown[(32 << 20) - 1] == 7;
			printf("grown %d %d\n", kept, all_zero(grown + (33 << 20), 222 << 20));
		} else if (!strcmp(line, "dontneed")) {
			madvise(memory[0], BLOCK, MADV_DONTNEED);
			printf("zero %d\n", all_zero((char *)memory[0], BLOCK));
		} else if (!strcmp(line, "regrow")) {
			/* Grow a mapping of memory itself, shrink it, and grow it again. */
			char *m = mremap(memory[blocks - 1], BLOCK, 3 * BLOCK, MREMAP_MAYMOVE);
			int ok = m != MAP_FAILED && all_zero(m + BLOCK, 2 * BLOCK) && !all_zero(m, BLOCK);
			memset(m + BLOCK, 1, 2 * BLOCK);
			m = mremap(m, 3 * BLOCK, 2 * BLOCK, 0);
			m = mremap(m, 2 * BLOCK, 4 * BLOCK, MREMAP_MAYMOVE);
			ok = ok && m != MAP_FAILED && m[2 * BLOCK - 1] == 1 && all_zero(m + 2 * BLOCK, 2 * BLOCK);
			memory[blocks - 1] = (uint64_t *)m;
			printf("regrown %d\n", ok);
		} else if (!strcmp(line, "holegrow")) {
			/* Grow a mapping of which a part in the middle was discarded. */
			char *m = (char *)memory[blocks - 1];
			char last = m[BLOCK - 1];
			madvise(m + BLOCK / 4, BLOCK / 4, MADV_DONTNEED);
			m = mremap(m, BLOCK, 2 * BLOCK, MREMAP_MAYMOVE);
			int ok = m != MAP_FAILED && m[BLOCK - 1] == last && !all_zero(m, BLOCK / 4) &&
				all_zero(m + BLOCK / 4, BLOCK / 4) && all_zero(m + BLOCK, BLOCK);
			if (m != MAP_FAILED) memory[blocks - 1] = (uint64_t *)m;
			printf("holegrown %d\n", ok);
		} else if (!strcmp(line, "free")) {
			/* Pages in the middle, some of them not resident, as an allocator purges. */
			char *m = (char *)memory[0];
			m[BLOCK / 2] = 5;
			int rc = madvise(m + BLOCK / 4, BLOCK / 2, MADV_FREE);
			memset(m + BLOCK / 4, 0, BLOCK / 2);
			printf("freed %d\n", rc);
		} else if (!strcmp(line, "forked")) {
			fflush(stdout);
			pid_t c = fork();
			if (!c) {
				madvise(memory[1], BLOCK, MADV_DONTNEED);
				_exit(all_zero((char *)memory[1], BLOCK) ? 4 : 5);
			}
			int status;
			waitpid(c, &status, 0);
			printf("child %d\n", WEXITSTATUS(status));
		} else if (!strcmp(line, "time")) {
			struct timespec now; clock_gettime(CLOCK_REALTIME, &now); printf("time %ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
		} else if (!strcmp(line, "thread")) { int v = 0; pthread_t t; pthread_create(&t, NULL, answer, &v); pthread_join(t, NULL); printf("thread %d\n", v); }
		else if (!strcmp(line, "log")) { fprintf(lf, "after %s\n", arg); fflush(lf); printf("logged\n"); }
		else if (!strcmp(line, "make")) { FILE *f = fopen(arg, "w"); fprintf(f, "made\n"); fclose(f); printf("made\n"); }
		else if (!strcmp(line, "exists")) { printf("exists %d\n", access(arg, F_OK) == 0); }
		else if (!strcmp(line, "file") || !strcmp(line, "status")) {
			char b[4096];
			int status = !arg;
			FILE *f = fopen(status ? "/proc/self/status" : arg, "r");
			if (!f) printf("file %s\n", strerror(errno));
			while (f && fgets(b, sizeof b, f))
				if (!status || !strncmp(b, "Cap", 3) || !strncmp(b, "Uid", 3) || !strncmp(b, "Gid", 3) ||
					!strncmp(b, "Groups", 6) || !strncmp(b, "NoNew", 5) || !strncmp(b, "Seccomp:", 8)) printf("file %s", b);
			if (f) fclose(f);
		} else if (!strcmp(line, "put")) { FILE *f = fopen(arg, "w"); printf("put %d\n", f && fputs("put\n", f) >= 0 && !fclose(f)); }
		else if (*line == '@' || *line == '+') ;
		else if (!strcmp(line, "size")) printf("size %ld\n", size);
		else if (!strcmp(line, "settings")) printf("settings %s", set);
		else if (!strcmp(line, "address")) printf("address %p %p %p\n", (void *)main, (void *)line, (void *)grown);
		else if (!strcmp(line, "index")) printf("index %s", first);
		else if (!strcmp(line, "pid")) printf("pid %d\n", getpid());
		else if (!strcmp(line, "say")) printf("%s\n", arg);
		else if (!strcmp(line, "flush")) fflush(stdout);
		else if (!strcmp(line, "fork")) { fflush(stdout); if (!fork()) { for (;;) pause(); } }
		else if (!strcmp(line, "exit")) { fflush(stdout); exit(atoi(arg)); }
		else if (!strcmp(line, "crash")) abort();
		else if (!strcmp(line, "hang")) { fflush(stdout); for (;;) pause(); }
		else { fprintf(stderr, "unknown command %s\n", line); return 3; }
	}
	if (ferror(in)) { perror("read"); return 1; }
	return 0;
}
