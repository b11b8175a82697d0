/* A program that keeps something from before its input is opened, or changes something.
 *
 * usage: keeps WHAT FILE INPUT
 *
 * It prints for each line of INPUT what it has kept, or whether the world is as it left it.
 * FILE is a file outside of its directory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

enum { LATE = 4 }; /* seconds */

static const char *what, *file, *input;
static char line[1 << 16], text[4096], large[2 << 20];
static struct timespec monotonic, real;
static uint64_t cycles;
static double seconds;
static int32_t pair[2];
static long number, sizes[2];
static struct stat status;
static volatile int fired, rang;
static int ends[2];
static const char *mapped;
static volatile char *shared;
static int scratch;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static int is(const char *name) { return !strcmp(what, name); }

static void die(const char *why) { perror(why); exit(9); }

static void ring(int sig) { rang = sig; }

static void *waits(void *unused)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += LATE;
	pthread_mutex_lock(&lock);
	fired = pthread_cond_timedwait(&never, &lock, &until) == ETIMEDOUT;
	pthread_mutex_unlock(&lock);
	return unused;
}

static const char *beside(const char *end)
{
	static char path[4096];
	snprintf(path, sizeof path, "%s%s", file, end);
	return path;
}

static void make(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	if (fd < 0) die(path);
	close(fd);
}

static void begin(void)
{
	if (is("times")) {
		clock_gettime(CLOCK_MONOTONIC, &monotonic);
		clock_gettime(CLOCK_REALTIME, &real);
		cycles = __rdtsc();
		seconds = real.tv_sec + real.tv_nsec * 1e-9;
		pair[1] = real.tv_sec;
	}
	if (is("deadline")) {
		pthread_t t;
		pthread_create(&t, NULL, waits, NULL);
		usleep(200000);
	}
	if (is("name")) { struct utsname u; uname(&u); strcpy(text, u.nodename); }
	if (is("processors")) { cpu_set_t s; sched_getaffinity(0, sizeof s, &s); number = CPU_COUNT(&s); }
	if (is("cpuset")) { cpu_set_t s; sched_getaffinity(0, sizeof s, &s); memcpy(&number, &s, sizeof number); }
	if (is("memory")) { struct sysinfo s; sysinfo(&s); number = s.totalram; explicit_bzero(&s, sizeof s); }
	if (is("nice")) number = getpriority(PRIO_PROCESS, 0);
	if (is("io")) number = syscall(SYS_ioprio_get, 1, 0);
	if (is("policy")) number = sched_getscheduler(0);
	if (is("slack")) number = prctl(PR_GET_TIMERSLACK);
	if (is("privileges")) number = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
	if (is("files")) { struct rlimit r; getrlimit(RLIMIT_NOFILE, &r); number = r.rlim_cur; }
	if (is("core")) { struct rlimit r; getrlimit(RLIMIT_CORE, &r); number = r.rlim_cur; }
	if (is("boot")) {
		int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
		if (read(fd, text, 36) != 36) die("boot_id");
		close(fd);
	}
	if (is("mounts") || is("cgroup") || is("mountinfo")) {
		snprintf(text, sizeof text, "/proc/self/%s", what);
		int fd = open(is("mounts") ? "/proc/mounts" : text, O_RDONLY);
		memset(text, 0, sizeof text);
		number = read(fd, line, sizeof line);
		explicit_bzero(line, sizeof line);
		close(fd);
	}
	if (is("attribute") && getxattr(file, "user.premix", text, sizeof text) < 0) die(file);
	if (is("map")) {
		struct stat st;
		int fd = open(file, O_RDONLY);
		if (fd < 0 || fstat(fd, &st) || (mapped = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) die(file);
		close(fd);
		text[0] = mapped[0];
	}
	if (is("read")) {
		int fd = open(file, O_RDONLY);
		if (read(fd, text, 1) != 1) die(file);
		close(fd);
	}
	if (is("rename")) { make(beside(".new")); if (rename(beside(".new"), file)) die(file); }
	if (is("remove")) unlink(file);
	if (is("link")) { unlink(file); if (symlink("elsewhere", file)) die(file); }
	if (is("mode") && chmod(file, 0640)) die(file);
	if (is("directory") && (mkdir(beside(".d"), 0700) && errno != EEXIST || chmod(beside(".d"), 0750))) die("directory");
	if (is("touch") && utimensat(AT_FDCWD, file, (struct timespec[2]){{5, 0}, {5, 0}}, 0)) die(file);
	if (is("shm")) number = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600), shmctl(number, IPC_RMID, NULL);
	if (is("sem")) number = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600), semctl(number, 0, IPC_RMID);
	if (is("msg")) number = msgget(IPC_PRIVATE, IPC_CREAT | 0600), msgctl(number, IPC_RMID, NULL);
	if (is("uring")) { char params[256] = ""; close(syscall(SYS_io_uring_setup, 8, params)); }
	if (is("key")) syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1);
	if (is("personality")) personality(personality(-1) | UNAME26);
	if (is("mdwe")) prctl(65, 1, 0, 0, 0); /* PR_SET_MDWE */
	if (is("network")) {
		struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		connect(fd, (struct sockaddr *)&to, sizeof to);
		close(fd);
	}
	if (is("permissions")) { struct stat st; stat(input, &st); number = st.st_mode; explicit_bzero(&st, sizeof st); }
	if (is("links")) { struct stat st; stat(input, &st); number = st.st_nlink; explicit_bzero(&st, sizeof st); }
	if (is("device")) { struct stat st; stat(input, &st); number = st.st_dev; explicit_bzero(&st, sizeof st); }
	if (is("owner")) { struct stat st; stat(input, &st); number = st.st_uid; explicit_bzero(&st, sizeof st); }
	if (is("blocks")) { struct stat st; stat(input, &st); number = st.st_blocks; explicit_bzero(&st, sizeof st); }
	if (is("status")) { stat(input, &status); number = status.st_uid + status.st_blocks + status.st_dev; }
	if (is("statx")) { struct statx st; statx(AT_FDCWD, input, 0, STATX_ALL, &st); number = st.stx_uid * 7 + st.stx_dev_minor; explicit_bzero(&st, sizeof st); }
	if (is("sizes")) {
		struct stat st;
		if (stat(input, &st)) die(input);
		sizes[0] = st.st_size;
		if (stat("second", &st)) die("second");
		sizes[1] = st.st_size;
		explicit_bzero(&st, sizeof st);
	}
	if (is("kept status") || is("inode seed")) stat(input, &status);
	if (is("inode seed")) { srand(status.st_ino); memset(&status, 0, sizeof status); }
	if (is("writable")) number = access(input, W_OK);
	if (is("executable")) number = access(input, X_OK);
	if (is("inputattribute")) number = getxattr(input, "user.premix", text, sizeof text);
	if (is("first")) { if (!getcwd(line, sizeof line)) die("."); number = !strncmp(line, "/tmp/", 5); explicit_bzero(line, sizeof line); }
	if (is("system")) { struct statfs st; statfs(input, &st); number = st.f_type; explicit_bzero(&st, sizeof st); }
	if (is("columns")) {
		FILE *in = fopen(input, "r");
		if (!in || !fgets(line, sizeof line, in)) die(input);
		fclose(in);
		for (const char *p = line; *p; p++) number += *p == ',';
		explicit_bzero(line, sizeof line);
		if (!(in = fopen(file, "r")) || !fread(large, 1, sizeof large, in)) die(file);
		fclose(in);
	}
	if (is("shared") || is("shared page")) {
		number = is("shared") ? sizeof large : 4096;
		shared = mmap(NULL, number, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (shared == MAP_FAILED) die("mmap");
		memset((char *)shared, 1, number);
	}
	if (is("seed")) srand(getpid());
	if (is("scratch") || is("unlinked")) {
		strcpy(text, is("scratch") ? file : beside(".XXXXXX"));
		scratch = is("scratch") ? open(text, O_RDWR) : mkstemp(text);
		if (scratch < 0 || write(scratch, "abc", 3) != 3) die(text);
		if (is("unlinked")) unlink(text), memset(text, 0, sizeof text);
	}
	if (is("pipe") && (pipe(ends) || write(ends[1], "abc", 3) != 3)) die("pipe");
	if (is("alarm")) { signal(SIGALRM, ring); alarm(100); }
}

static void say(void)
{
	struct timespec m, r;
	if (is("times")) {
		clock_gettime(CLOCK_MONOTONIC, &m);
		clock_gettime(CLOCK_REALTIME, &r);
		printf("%d %d %d %d %d\n", m.tv_sec - monotonic.tv_sec >= LATE, r.tv_sec - real.tv_sec >= LATE,
			__rdtsc() - cycles > 1000000000000, r.tv_sec - seconds >= LATE, (int32_t)r.tv_sec - pair[1] >= LATE);
	} else if (is("deadline")) {
		usleep(200000);
		printf("%d\n", fired);
	} else if (is("map")) {
		printf("%c %c\n", text[0], mapped[0]);
	} else if (is("pipe")) {
		char b[4] = "";
		printf("%zd %s\n", read(ends[0], b, 3), b);
		if (write(ends[1], "abc", 3) != 3) die("pipe");
	} else if (is("alarm")) {
		int left = alarm(100);
		printf("%d %d\n", rang, left > 0 && left <= 100);
	} else if (shared) {
		if (!fork()) _exit(++shared[0] + ++shared[number - 1] > 100);
		wait(NULL);
		++*shared;
		usleep(300000);
		printf("%d %d\n", shared[0], shared[number - 1]);
	} else if (is("kept status")) {
		struct stat now;
		stat(input, &now);
		now.st_atim = status.st_atim;
		printf("%ld %s\n", (long)status.st_size, memcmp(&now, &status, sizeof now) ? "other" : "same");
	} else if (is("sizes")) {
		printf("%ld %ld\n", sizes[0], sizes[1]);
	} else if (is("environment")) {
		if (!getcwd(line, sizeof line)) die(".");
		puts(strcmp(getenv("PWD"), line) ? getenv("PWD") : "same");
	} else if (is("seed") || is("inode seed")) {
		printf("%d\n", rand());
	} else if (scratch) {
		struct stat st;
		if (write(scratch, "d", 1) != 1 || fstat(scratch, &st)) die("scratch");
		usleep(300000);
		printf("%ld\n", (long)st.st_size);
	} else if (is("directory")) {
		struct stat st;
		printf("%o\n", stat(beside(".d"), &st) ? 0 : st.st_mode & 0777);
	} else if (is("remove") || is("link")) {
		struct stat st;
		printf("%d\n", lstat(file, &st));
	} else {
		printf("%s %ld\n", text, number);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4) return 2;
	what = argv[1], file = argv[2], input = argv[3];
	begin();
	pid_t me = getpid(); /* in a register */
	FILE *in = fopen(input, "r");
	if (!in) die(input);
	if (me != getpid()) puts("another process id");
	while (fgets(line, sizeof line, in)) say();
	return 0;
}
