/*
 * synth MEGABYTES FILE: a tool with nothing but an initialisation.
 *
 * It fills so much memory with numbers that do not compress, opens FILE and
 * does what its lines say:
 *
 *   read N    N reads of 8 bytes, at random
 *   write N   N writes of 8 bytes, at random
 *   pages     one read in each page
 *   hold MS   sleeps
 *
 * stdout gets a sum that depends on every byte read; stderr the seconds of CPU
 * time that each line took.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK ((size_t)64 << 20) /* bytes an allocation */
#define WORDS (BLOCK / sizeof(uint64_t))
#define PAGE 4096

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 3 || atol(argv[1]) < 64) {
		fprintf(stderr, "usage: synth MEGABYTES FILE (at least 64)\n");
		return 2;
	}
	size_t blocks = (size_t)atol(argv[1]) / 64;
	uint64_t **block = calloc(blocks, sizeof *block);
	uint64_t x = UINT64_C(0x9e3779b97f4a7c15);
	for (size_t i = 0; block && i < blocks; i++) {
		if (!(block[i] = malloc(BLOCK))) {
			perror("synth");
			return 1;
		}
		for (size_t j = 0; j < WORDS; j++)
			block[i][j] = next(&x);
	}

	FILE *f = fopen(argv[2], "r");
	if (!f) {
		perror(argv[2]);
		return 1;
	}
	char line[128];
	uint64_t sum = 0, where = 1;
	while (fgets(line, sizeof line, f)) {
		long n = 0;
		double begin = now();
		if (sscanf(line, "read %ld", &n) == 1) {
			for (long i = 0; i < n; i++) {
				uint64_t r = next(&where);
				sum += block[(r >> 32) % blocks][(uint32_t)r % WORDS];
			}
		} else if (sscanf(line, "write %ld", &n) == 1) {
			for (long i = 0; i < n; i++) {
				uint64_t r = next(&where);
				block[(r >> 32) % blocks][(uint32_t)r % WORDS] ^= sum;
			}
		} else if (!strncmp(line, "pages", 5)) {
			for (size_t i = 0; i < blocks; i++)
				for (size_t j = 0; j < WORDS; j += PAGE / sizeof(uint64_t))
					sum += block[i][j];
		} else if (sscanf(line, "hold %ld", &n) == 1) {
			usleep((useconds_t)n * 1000);
		} else {
			fprintf(stderr, "synth: what is %s", line);
			return 1;
		}
		line[strcspn(line, "\n")] = 0;
		fprintf(stderr, "%s: %.6f s\n", line, now() - begin);
	}
	printf("%" PRIx64 "\n", sum);
	return 0;
}
