package store_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"premix/internal/store"
	"premix/internal/store/tree"
)

// The test binary is also the child process that publishes or collects, and is killed.
const childEnv = "PREMIX_TEST_STORE_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := child(what, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child performs one operation on a store. Its arguments are the directory of the store,
// its home, and the arguments of the operation.
func child(what string, args []string) error {
	s, err := store.Open(args[0], store.Options{Home: args[1], Unsynced: true})
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch what {
	case "publish", "publish-little": // args: directory, reference, cache
		if what == "publish-little" {
			store.LittleMemory()
		}
		key, err := s.Key("")
		if err != nil {
			return err
		}
		ref, err := tree.ParseRef(args[3])
		if err != nil {
			return err
		}
		if _, err = s.Publish(ctx, args[2], ref, store.PublishOptions{Key: key, Cache: args[4]}); err != nil {
			return err
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		_, err = fmt.Println(strings.Fields(peak)[0]) // KiB, of this program alone: Maxrss is of the parent before
		return err
	case "gc": // repeat until the process is killed
		for {
			if _, err := s.GC(ctx, store.GCOptions{}); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	}
	return fmt.Errorf("unknown child %q", what)
}

func childCommand(s *store.Store, what string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{s.Dir(), homeOf(s)}, args...)...)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.Stderr = os.Stderr
	return cmd
}

// soak returns how often a test repeats a step: n times, or many times in a soak run.
func soak(n, many int) int {
	if os.Getenv("PREMIX_SOAK") != "" {
		return many
	}
	return n
}
