// rand SEED CALLS: prints the results of rand(3), and the table of its generator after them.
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
	static char other[8];
	srand(strtoul(argv[1], 0, 10));
	for (int n = atoi(argv[2]); n > 0; n--) printf("%d ", rand());
	int *table = (int *)initstate(1, other, sizeof other);
	printf("\n");
	for (int i = 1; i <= 31; i++) printf("%u ", table[i]);
	printf("\n");
	return 0;
}
