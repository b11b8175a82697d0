/* A stand-in for a tool that loads an index and then reads its input.
 *
 * usage: tool [-R LABEL] [-o OUTPUT] [-v NAME] [-d] [-p] [-s] [-h] [-l] [-m] [-i] [-t] [-q WHAT] [-e] [-w FILE] [-x] INDEX INPUT
 *
 *   -R LABEL   is copied, and printed with each line
 *   -o OUTPUT  is opened when the index has been loaded; standard output otherwise
 *   -v NAME    a variable of the environment, printed at the end
 *   -c NAME    the same, copied before the input is opened
 *   -d         keep the working directory, and print it at the end
 *   -p         print to standard output before the input is opened
 *   -s         ask for the size of the input first
 *   -k         ask for the size of the input first, and keep it
 *   -K         keep a part of the time at which the inode of INPUT was changed, and see in the
 *              end whether it is right
 *   -h         keep a hash of LABEL
 *   -l         keep whether LABEL comes before INPUT
 *   -m         keep whether LABEL comes before "M"
 *   -i         keep whether LABEL begins with a digit
 *   -t         keep whether INPUT is newer than INDEX
 *   -D         keep the date
 *   -A KIND    keep a number from an address (main, stack, heap) or from AT_RANDOM (random)
 *   -q WHAT    keep a number: see ask
 *   -N         write the size of INPUT to OUTPUT before the input is opened
 *   -e FILE    end with an error before the input where FILE exists
 *   -w FILE    write to FILE before the input is opened
 *   -f WAY     open INPUT before INDEX, and: o, nothing else; p, look at two bytes of it;
 *              b, read two bytes of it; k, look at two bytes and keep the second one; e, look
 *              at all of it; m, map it
 *   -3         write a line to descriptor 3 in the end
 *   -n         sleep until a signal comes, after more than 250 lines of input
 *
 * INPUT may be - for standard input.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static char *index_;
static size_t size;
static long kept;
static unsigned hash;
static char directory[4096];
static char copied[4096], date[16];
static long part;
static volatile int got;

/* ask returns a number that depends on the surroundings of the process, on its streams, on
 * its input or on the letters of the label. */
static long ask(const char *what, const char *label, const char *input)
{
	struct stat st = {0};
	struct utsname name = {0};
	struct statvfs space = {0};
	unsigned attributes[14] = {0};
	char here[4096];
	long n = 0;
#define IS(x) !strcmp(what, x)
	if (IS("parent")) return getppid();
	if (IS("group")) return getpgrp() == getpid();
	if (IS("session")) return getsid(0) == getpid();
	if (IS("node")) return uname(&name) ? 0 : name.nodename[0] * 256 + name.nodename[1];
	if (IS("nice")) return getpriority(PRIO_PROCESS, 0);
	if (IS("io")) return syscall(SYS_ioprio_get, 1, 0);
	if (IS("policy")) return sched_getscheduler(0);
	if (IS("attributes")) return syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) ? 0 : attributes[1];
	if (IS("links")) return stat("/usr", &st) ? 0 : st.st_nlink;
	if (IS("slack")) return prctl(PR_GET_TIMERSLACK);
	if (IS("space")) return statvfs(".", &space) ? 0 : space.f_bavail > 1000;
	if (IS("empty")) return fstat(1, &st) ? 0 : st.st_size == 0;
	if (IS("small")) return fstat(0, &st) ? 0 : st.st_size < 1 << 20;
	if (IS("offset")) return lseek(1, 0, SEEK_CUR) == 0;
	if (IS("flags0")) return fcntl(0, F_GETFL);
	if (IS("flags1")) return fcntl(1, F_GETFL) & ~O_APPEND;
	if (IS("mode")) return stat(input, &st) ? 0 : st.st_mode;
	if (IS("slashes") && getcwd(here, sizeof here)) for (char *p = here; *p; p++) n += *p == '/';
	if (IS("resolves")) return realpath(".", here) != NULL;
	if (IS("above") && getcwd(here, sizeof here)) while (*strrchr(here, '/') = 0, *here) n |= access(here, W_OK);
	if (IS("truncate")) return !freopen("/dev/stdout", "w", stdout);
	const char *p = label + strlen(label) - 1; /* the last letter */
	if (IS("lower")) n = tolower((unsigned char)*p) * 256 + *label;
	if (IS("capital")) n = isupper((unsigned char)*p) != 0;
	if (IS("hexadecimal")) for (n = 1, p = label; *p; p++) n &= isxdigit((unsigned char)*p) != 0;
	if (IS("parity")) for (p = label; *p; p++) n ^= *p & 1;
	return n;
}

static void note(int sig) { got++; (void)sig; }

int main(int argc, char **argv)
{
	const char *label = "", *output = NULL, *variable = NULL, *copy = NULL, *error = NULL, *early = NULL, *seed = NULL, *way = NULL, *what = NULL, *second = NULL;
	FILE *in = NULL, *mates = NULL;
	int opt, dir = 0, print = 0, stats = 0, keep = 0, hashes = 0, nap = 0, third = 0, order = 0, middle = 0, digit = 0, newer = 0, dates = 0, sizes = 0, changed = 0;
	while ((opt = getopt(argc, argv, "R:o:v:c:dpskhlmitDKA:Ne:w:n3f:q:g:")) != -1) switch (opt) {
		case 'R': label = strdup(optarg); break;
		case 'o': output = optarg; break;
		case 'v': variable = optarg; break;
		case 'c': copy = optarg; break;
		case 'd': dir = 1; break;
		case 'p': print = 1; break;
		case 's': stats = 1; break;
		case 'k': keep = 1; break;
		case 'h': hashes = 1; break;
		case 'l': order = 1; break;
		case 'm': middle = 1; break;
		case 'i': digit = 1; break;
		case 't': newer = 1; break;
		case 'D': dates = 1; break;
		case 'K': changed = 1; break;
		case 'A': seed = optarg; break;
		case 'N': sizes = 1; break;
		case 'e': error = optarg; break;
		case 'w': early = optarg; break;
		case 'n': nap = 1; break;
		case '3': third = 1; break;
		case 'f': way = optarg; break;
		case 'q': what = optarg; break;
		case 'g': second = optarg; break;
		default: return 2;
	}
	if (argc - optind != 2) return 2;
	mkdir("", 0700); /* fails, as STAR's does */
	const char *input = argv[optind + 1];
	if (dir && !getcwd(directory, sizeof directory)) return 3;
	if (copy && getenv(copy)) strcpy(copied, getenv(copy));
	if (hashes) for (const char *p = label; *p; p++) hash = hash * 31 + *p;
	if (order) kept = strcmp(label, input) < 0;
	if (middle) kept = strcmp(label, "M") < 0;
	if (what) kept = ask(what, label, input);
	if (digit) kept = isdigit((unsigned char)*label) != 0;
	struct stat st, ref;
	if (newer && !stat(input, &st) && !stat(argv[optind], &ref)) kept = st.st_mtime > ref.st_mtime;
	if (dates) {
		time_t now = time(NULL);
		strftime(date, sizeof date, "%Y%m%d", gmtime(&now));
	}
	if (seed) {
		unsigned long at = *seed == 'm' ? (unsigned long)main : *seed == 's' ? (unsigned long)&st :
			*seed == 'h' ? (unsigned long)malloc(1) : *(unsigned long *)getauxval(AT_RANDOM);
		hash = at * 0x9e3779b97f4a7c15ul >> 40;
	}
	if (changed && !stat(input, &st)) part = st.st_ctim.tv_nsec >> 16;
	FILE *out = NULL;
	if (sizes) {
		if (stat(input, &st) || !(out = fopen(output, "w"))) return 6;
		fprintf(out, "size=%ld\n", (long)st.st_size);
		fflush(out);
	}
	if (stats || keep) {
		if (stat(input, &st)) { fprintf(stderr, "tool: %s: %s\n", input, strerror(errno)); return 4; }
		if (st.st_size == 0) { fprintf(stderr, "tool: %s is empty\n", input); return 4; }
		if (keep) kept = st.st_size;
	}
	if (error && !access(error, F_OK)) { fprintf(stderr, "tool: %s exists\n", error); return 5; }
	if (early) {
		FILE *f = fopen(early, "w");
		if (!f) return 6;
		fprintf(f, "log of %s\n", label);
		fclose(f);
	}
	if (way) {
		int fd = open(input, O_RDONLY);
		if (fd < 0 || !(in = fdopen(fd, "r"))) { fprintf(stderr, "tool: cannot open %s: %s\n", input, strerror(errno)); return 1; }
		char two[2] = "";
		if (strchr("pbk", *way) && (read(fd, two, 1) != 1 || read(fd, two + 1, 1) != 1)) { fprintf(stderr, "tool: %s is short\n", input); return 4; }
		if (*way == 'k') kept = two[1];
		if (*way == 'e') while (read(fd, two, 1) == 1) ;
		if (*way == 'm') mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0);
		if (*way != 'b') lseek(fd, 0, SEEK_SET);
		explicit_bzero(two, sizeof two);
	}
	if (second && !(mates = fopen(second, "r"))) { fprintf(stderr, "tool: cannot open %s: %s\n", second, strerror(errno)); return 1; }
	FILE *f = fopen(argv[optind], "r");
	if (!f) { perror(argv[optind]); return 7; }
	fseek(f, 0, SEEK_END);
	size = ftell(f);
	rewind(f);
	index_ = malloc(size + 1);
	if (fread(index_, 1, size, f) != size) return 7;
	fclose(f);
	unsigned sum = 0;
	for (size_t i = 0; i < size; i++) sum = sum * 33 + (unsigned char)index_[i];
	fprintf(stderr, "tool: loaded %zu bytes for %s\n", size, label);
	if (print) { printf("#header %s %s\n", label, input); fflush(stdout); }

	if (!in) in = strcmp(input, "-") ? fopen(input, "r") : stdin;
	if (!in) { fprintf(stderr, "tool: cannot open %s: %s\n", input, strerror(errno)); return 1; }
	if (!out) out = output ? fopen(output, "w") : stdout;
	if (!out) { fprintf(stderr, "tool: cannot write %s: %s\n", output, strerror(errno)); return 1; }
	char line[4096];
	unsigned long n = 0;
	while (fgets(line, sizeof line, in)) {
		for (char *p = line; *p; p++) sum = sum * 33 + (unsigned char)*p;
		fprintf(out, "%s\t%lu\t%u\n", label, n++, sum);
	}
	while (mates && fgets(line, sizeof line, mates)) fprintf(out, "mate %s", line);
	for (int i = 0; i < argc; i++) fprintf(out, "%s ", argv[i]);
	fprintf(out, "\n%s %s %u %ld\n", argv[0], program_invocation_short_name, hash, kept);
	if (variable) fprintf(out, "%s=%s\n", variable, getenv(variable) ? getenv(variable) : "(none)");
	if (copy) fprintf(out, "copied %s\n", copied);
	if (dir) fprintf(out, "in %s\n", directory);
	if (changed && !stat(input, &st)) fprintf(out, "%s\n", part == st.st_ctim.tv_nsec >> 16 ? "right" : "wrong");
	if (dates) fprintf(out, "on %s\n", date);
	if (fflush(out)) { fprintf(stderr, "tool: write: %s\n", strerror(errno)); return 8; }
	if (third) dprintf(3, "three\n");
	if (nap && n > 4 * 250) {
		struct sigaction a = {.sa_handler = note};
		sigaction(SIGUSR1, &a, NULL);
		sigaction(SIGINT, &a, NULL);
		fprintf(stderr, "tool: asleep\n");
		while (!got) usleep(1000); /* a signal may come at any time */
		usleep(200000);
		fprintf(stderr, "tool: got %d signals\n", got);
	}
	fprintf(stderr, "tool: done\n");
	return n % 7 == 3 ? 9 : 0;
}
