package workbench

import (
	"context"
	"fmt"
	"strings"
)

// DebianMirrors returns the mirror in this machine's apt configuration for each suite
// of a release.
func DebianMirrors(ctx context.Context, release string) (map[string]string, error) {
	out, err := Command(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt for its mirrors: %w", err)
	}
	mirrors := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && mirrors[f[0]] == "" {
			mirrors[f[0]] = f[1]
		}
	}
	if mirrors[release] == "" {
		return nil, fmt.Errorf("apt has no mirror of Debian %s: run apt-get update, or on Debian %s", release, release)
	}
	return mirrors, nil
}
