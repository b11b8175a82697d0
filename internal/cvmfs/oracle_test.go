package cvmfs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/testkit/cvmfsrepo"
)

// TestOracle compares a copy with what another client of CVMFS, the Rust crate cvmfs,
// shows of the same servers: every byte and attribute that it knows, see oracleTree. It
// gives SHAKE-128 another number than the sources of CVMFS do.
func TestOracle(t *testing.T) {
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(cache, "premix/cvmfs/bin/cvmfs-cli")
	if _, err := os.Stat(client); err != nil {
		t.Skipf("the crate cvmfs 0.4.2 is not built (scripts/setup.sh soak): %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("there is no /dev/fuse")
	}
	for _, a := range []cvmfsrepo.Algorithm{cvmfsrepo.SHA1, cvmfsrepo.RMD160} {
		id := cvmfsrepo.NewIdentity(t, 0, 1)
		p := cvmfsrepo.Publish(t, oracleTree(), a, id, 5)
		// The other client reads only manifests whose own hash is SHA-1.
		p.Files[".cvmfspublished"] = resign(p.Files[".cvmfspublished"], id)
		// It asks for these for a minute.
		for _, name := range []string{".cvmfs_last_snapshot", ".cvmfs_is_snapshotting"} {
			p.Files[name] = []byte("Mon  1 Jan 00:00:00 UTC 2024")
		}
		server := p.Serve(t)
		ours, err := mirrored(t, options(t, id, server), "")
		if err != nil {
			t.Fatal(err)
		}
		mnt := t.TempDir()
		var log bytes.Buffer
		cmd := exec.Command(client, strings.ReplaceAll(server, "@fqrn@", cvmfsrepo.Name), mnt, t.TempDir())
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		t.Cleanup(func() {
			if err := unmount.Dir(mnt); err != nil {
				t.Error(err)
			}
			_ = cmd.Process.Kill()
			<-done
		})
		for started := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			var st unix.Statfs_t
			if unix.Statfs(mnt, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC {
				break
			}
			select {
			case <-done:
				t.Fatalf("the client ended:\n%s", log.String())
			default:
			}
			if time.Since(started) > time.Minute {
				t.Fatalf("the client does not mount:\n%s", log.String())
			}
		}
		compare(t, facts(t, ours), facts(t, mnt))
	}
}

// oracleTree has what the other client shows: it has no xattrs, hard links, plain files, hidden
// entries, nanoseconds, variables of symbolic links, or names that are not UTF-8.
func oracleTree() cvmfsrepo.Tree {
	tree := cvmfsrepo.Sample(true)
	tree["/nested/deeper/tü"] = tree["/nested/deeper/t\xff ü"]
	for _, p := range []string{"/nested/deeper/t\xff ü", "/nested/deeper/xattr", "/variable", "/sub/hidden"} {
		delete(tree, p)
	}
	for _, n := range tree {
		n.Group, n.Plain, n.Time = 0, false, n.Time.Truncate(time.Second)
	}
	return tree
}
