/* late: a program that keeps things of its words, its inputs and its threads at random
 * before it opens its input, and prints all that it has kept after it.
 *
 * usage: late SEED STEPS BITS OUTPUT INPUT LABEL...
 *
 * BITS is the least number of bits that it keeps of what it computes from a word: a value
 * of few bits can be the same for two words by chance. Nothing that it prints depends on
 * addresses, process ids or time.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef uint64_t u64;
static u64 state;
static u64 rnd(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state * 2685821657736338717ull; }
static u64 below(u64 n) { return (rnd() >> 11) % n; }

enum { KEPT = 64, THREADS = 3, BUCKETS = 64 };
static struct { const char *what; char *text; u64 value; } kept[KEPT];
static int used, words, bits;
static char **word;
static char *table[BUCKETS];
static FILE *out;

static void keep(const char *what, char *text, u64 value)
{
	if (used < KEPT) kept[used].what = what, kept[used].text = text, kept[used++].value = value;
}

static u64 hash(const char *s)
{
	u64 h = 14695981039346656037ull;
	while (*s) h = (h ^ (unsigned char)*s++) * 1099511628211ull;
	return h ^ h >> 29;
}

/* insert puts a word into a table that keeps no hashes. */
static void insert(char *s, unsigned buckets)
{
	unsigned i = hash(s) % buckets;
	for (unsigned n = 0; n < buckets && table[i]; n++) i = (i + 1) % buckets;
	if (!table[i]) table[i] = s;
}

static int ordered(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

static void step(void)
{
	char *w = word[below(words)], *v = word[below(words)];
	size_t n = strlen(w), from = below(n), len = 1 + below(n - from);
	char b[8192], *t;
	struct stat st;
	switch (below(16)) {
	case 0: keep("copy", strdup(w), 0); break;
	case 1: keep("part", strndup(w + from, len), 0); break;
	case 2: keep("pointer", w + from, n); break;
	case 3: snprintf(b, sizeof b, "@RG\tID:%s\tSM:%s", w, v); keep("text", strdup(b), strlen(b)); break;
	case 4: keep("hash", 0, hash(w) & ((1ull << (bits + below(64 - bits))) - 1)); break;
	case 5: if (bits >= 8) break; t = strdup(w); for (char *p = t; *p; p++) *p = toupper(*p); keep("upper", t, 0); break;
	case 6: t = strdup(w); for (size_t i = 0; i < n; i++) t[i] = w[n - 1 - i]; keep("reverse", t, 0); break;
	case 7: if (bits < 8) keep("number", 0, strtoull(w + from, 0, 10)); break;
	case 8: if (bits < 3) keep("order", 0, strcmp(w, v) < 0); break;
	case 9: if (bits < 3) keep("class", 0, isdigit((unsigned char)w[from]) != 0); break;
	case 10: if (bits < 8) insert(w, bits < 3 ? 4 + below(BUCKETS - 4) : BUCKETS); break;
	case 11: {
		char *all[] = {"A", "M", "Z", "m", "5", w, v};
		qsort(all, 7, sizeof *all, ordered);
		b[0] = 0;
		for (int i = 0; i < 7; i++) strcat(strcat(b, all[i]), " ");
		if (bits < 8) keep("sorted", strdup(b), 0);
		break;
	}
	case 12:
		if (stat(word[0], &st)) break;
		switch (below(5)) {
		case 0: keep("size", 0, st.st_size); break;
		case 1: keep("modified", 0, st.st_mtime); break;
		case 2: if (bits < 3) keep("odd", 0, st.st_size & 1); break;
		case 3: if (bits < 3) keep("large", 0, st.st_size >> 20 > 100); break;
		case 4: memcpy(t = malloc(sizeof st), &st, sizeof st); keep("mode", t, st.st_mode & 0777); break;
		}
		break;
	case 13: fprintf(stderr, "late: %s %zu\n", w, len); break;
	case 14: snprintf(b, sizeof b, "%s", w); free(malloc(1 + below(5000))); memset(malloc(1 + below(3000)), 1, 1); keep("char", 0, (unsigned char)w[from]); break;
	case 15: printf("#%.*s\n", (int)len, w + from); if (below(2)) fflush(stdout); break;
	}
}

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int order[THREADS], alive[THREADS];
static pthread_t thread[THREADS];
static __thread char *mine;

static void *work(void *arg)
{
	long i = (long)arg;
	mine = strdup(word[i % words]);
	pthread_mutex_lock(&m);
	for (;;) {
		while (!order[i]) pthread_cond_wait(&c, &m);
		int o = order[i];
		if (o < 3) step();
		if (o == 2) fprintf(out ? out : stderr, "thread %ld: %s\n", i, mine);
		order[i] = 0;
		pthread_cond_broadcast(&c);
		if (o == 3) break;
	}
	pthread_mutex_unlock(&m);
	return 0;
}

static void threads(void)
{
	long i = below(THREADS);
	if (!alive[i]) {
		alive[i] = !pthread_create(&thread[i], 0, work, (void *)i);
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

static void *sums(void *arg)
{
	u64 *sum = arg, s = 0;
	char *p = malloc(1000 + *sum * 100);
	for (int i = 0; i < 200000; i++) s = s * 31 + i * *sum;
	memset(p, s, 100);
	*sum = s;
	return p;
}

int main(int argc, char **argv)
{
	if (argc < 6) return 2;
	state = strtoull(argv[1], 0, 10) * 0x9e3779b97f4a7c15ull | 1;
	for (int i = 0; i < 8; i++) rnd();
	bits = atoi(argv[3]);
	char *output = argv[4];
	word = argv + 5, words = argc - 5;
	size_t size = 1 << (12 + below(10));
	char *heap = malloc(size);
	memset(heap, 7, size);
	int threaded = below(2), early = below(3) == 0;
	for (long n = atol(argv[2]); n > 0; n--) threaded && below(3) == 0 ? threads() : step();
	if (threaded && below(2)) { /* they work at the same time */
		u64 s[THREADS];
		pthread_t t[THREADS];
		for (int i = 0; i < THREADS; i++) s[i] = i + 1, pthread_create(&t[i], 0, sums, &s[i]);
		for (int i = 0; i < THREADS; i++) { void *p; pthread_join(t[i], &p); keep("sum", 0, s[i] + *(char *)p); }
	}
	if (early && (out = fopen(output, "w"))) { fprintf(out, "#%s\n", word[words - 1]); if (below(2)) fflush(out); }

	FILE *in = fopen(word[0], "r");
	if (!in) { perror(word[0]); return 1; }
	if (!out && !(out = fopen(output, "w"))) return 1;
	char line[4096];
	u64 h = 0;
	while (fgets(line, sizeof line, in)) h = h * 31 + hash(line);
	fprintf(out, "input %lx\n", h);
	for (int i = 0; i < used; i++)
		if (!strcmp(kept[i].what, "mode")) { struct stat *st = (void *)kept[i].text; fprintf(out, "stat %ld %o %ld\n", (long)st->st_size, st->st_mode, (long)st->st_mtime); }
		else fprintf(out, "%s %s %lu\n", kept[i].what, kept[i].text ? kept[i].text : "", (unsigned long)kept[i].value);
	for (int i = 0; i < BUCKETS; i++) if (table[i]) fprintf(out, "bucket %d %s\n", i, table[i]);
	for (int i = 0; i < 20; i++) threaded && below(3) == 0 ? threads() : step();
	for (int i = 0; i < used; i++) if (strcmp(kept[i].what, "mode")) fprintf(out, "%s %s %lu\n", kept[i].what, kept[i].text ? kept[i].text : "", (unsigned long)kept[i].value);
	for (size_t i = 0; i < size; i++) h += heap[i];
	fprintf(out, "end %lx\n", h);
	return fclose(out) ? 9 : 0;
}
