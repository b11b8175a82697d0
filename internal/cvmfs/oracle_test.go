package cvmfs

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/testkit/cvmfsrepo"
)

// crate returns the program of another client of CVMFS, the Rust crate cvmfs.
func crate(t *testing.T) string {
	t.Helper()
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
	return client
}

// crateCache returns a cache of the crate that has all objects of a repository. The crate
// makes a new HTTP client for each object, which takes it 50 ms of processor time; it reads
// objects in its cache as they are.
func crateCache(t *testing.T, p *cvmfsrepo.Published) string {
	t.Helper()
	cache := t.TempDir()
	for name, stored := range p.Files {
		if !strings.HasPrefix(name, "data/") {
			continue
		}
		r, err := zlib.NewReader(bytes.NewReader(stored))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		path := filepath.Join(cache, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return cache
}

// crateMount mounts a repository with the crate, and unmounts it at the end of the test.
func crateMount(t *testing.T, client string, p *cvmfsrepo.Published, id *cvmfsrepo.Identity, server, cache string) string {
	t.Helper()
	p.Mu.Lock()
	// The crate reads only manifests whose own hash is SHA-1.
	p.Files[".cvmfspublished"] = resign(p.Files[".cvmfspublished"], id)
	// The crate requests these files, and repeats that for a minute if they are missing.
	for _, name := range []string{".cvmfs_last_snapshot", ".cvmfs_is_snapshotting"} {
		p.Files[name] = []byte("Mon  1 Jan 00:00:00 UTC 2024")
	}
	p.Mu.Unlock()
	mnt := t.TempDir()
	var log bytes.Buffer
	cmd := exec.Command(client, strings.ReplaceAll(server, "@fqrn@", cvmfsrepo.Name), mnt, cache)
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
			return mnt
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
}

// TestOracle compares a copy with the files that another client of CVMFS shows of the same
// servers. It compares all bytes and attributes that the other client supports, see
// forCrate. SHAKE-128 is left out, because the other client gives it another number than
// the sources of CVMFS do.
func TestOracle(t *testing.T) {
	client := crate(t)
	for _, a := range []cvmfsrepo.Algorithm{cvmfsrepo.SHA1, cvmfsrepo.RMD160} {
		id := cvmfsrepo.NewIdentity(t, 0, 1)
		p := cvmfsrepo.Publish(t, forCrate(cvmfsrepo.Sample(true)), a, id, 5)
		server := p.Serve(t)
		mnt := crateMount(t, client, p, id, server, t.TempDir())
		ours, err := mirrored(t, options(t, id, server), "")
		if err != nil {
			t.Fatal(err)
		}
		compare(t, facts(t, ours), facts(t, mnt))
	}
}

// scale returns the number of names of large repositories. PREMIX_CVMFS_NAMES sets another one.
func scale(t *testing.T) int {
	if s := os.Getenv("PREMIX_CVMFS_NAMES"); s != "" {
		names, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if os.Getenv("PREMIX_SOAK") != "" {
		return 100_000
	}
	return 2_500
}

// scaleTree returns a large tree with nested catalogs, files of all sizes, files in chunks,
// uncompressed files, files with several names, and odd names.
func scaleTree(names int) cvmfsrepo.Tree {
	random := rand.New(rand.NewPCG(3, 4))
	when := time.Unix(1_700_000_000, 0)
	dir := func(nested bool) *cvmfsrepo.Node {
		return &cvmfsrepo.Node{Mode: unix.S_IFDIR | 0o755, Nested: nested, Time: when, UID: 7, GID: 8}
	}
	tree := cvmfsrepo.Tree{"": dir(false)}
	odd := []string{" ", "a\nb", "-", "ü", "日本", "\x01", "%25", "'\"$x`", "*?[", strings.Repeat("n", 255), "...", "\xff\xfe", "~", "#", "\\"}
	var dirs []string
	for i := range 100 {
		d := fmt.Sprintf("/d%02d", i%10)
		if i >= 10 {
			d = fmt.Sprintf("%s/e%02d", d, i)
		}
		tree[d] = dir(i%4 == 1)
		dirs = append(dirs, d)
	}
	for i := len(tree); i < names; i++ {
		d := dirs[i%len(dirs)]
		n := &cvmfsrepo.Node{Mode: unix.S_IFREG | uint32(random.IntN(0o1000)), UID: uint32(i % 1000), GID: uint32(i % 7), Time: when.Add(time.Duration(i) * time.Hour)}
		name := fmt.Sprintf("%s/f%06d", d, i)
		switch k := i / len(dirs); {
		case k <= len(odd):
			name = d + "/" + odd[k-1]
			n.Content = []byte(name)
		case i%50 == 0:
			n.Mode, n.Target = unix.S_IFLNK|0o777, fmt.Sprintf("../f%06d", i-1)
		case i%500 == 1:
			n.Chunk = 1000 + random.IntN(9000)
			n.Content = make([]byte, 30_000+random.IntN(60_000))
			for k := range n.Content {
				n.Content[k] = byte(random.IntN(4))
			}
		case i%100 == 2:
			n.Group, n.Content = int64(i), []byte(name)
			second := *n
			tree[name+".link"] = &second
		case i%100 == 3:
			n.Xattrs = map[string]string{"user.number": fmt.Sprint(i)}
			n.Content = []byte(name)
		default:
			n.Plain = i%9 == 0
			n.Content = bytes.Repeat([]byte(name), random.IntN(20))
		}
		tree[name] = n
	}
	return tree
}

// A mount of a large repository shows every name, byte and attribute that was published.
func TestLiveScale(t *testing.T) {
	for _, a := range []cvmfsrepo.Algorithm{cvmfsrepo.SHA1, cvmfsrepo.RMD160, cvmfsrepo.SHAKE128} {
		id := cvmfsrepo.NewIdentity(t, 0, 1)
		tree := scaleTree(scale(t))
		h := newHost(t, cvmfsrepo.Publish(t, tree, a, id, 5))
		o, ev := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
		got := facts(t, shown(t, openedLive(t, o)))
		compare(t, got, wanted(tree, ""))
		if len(got) < scale(t) || ev.all() != "" {
			t.Errorf("%d names, %s", len(got), ev.all())
		}
	}
}

// A mount of a large repository agrees with the crate as far as the crate supports it.
func TestLiveScaleOracle(t *testing.T) {
	client := crate(t)
	for _, a := range []cvmfsrepo.Algorithm{cvmfsrepo.SHA1, cvmfsrepo.RMD160} {
		id := cvmfsrepo.NewIdentity(t, 0, 1)
		p := cvmfsrepo.Publish(t, forCrate(scaleTree(scale(t))), a, id, 5)
		h := newHost(t, p)
		theirs := facts(t, crateMount(t, client, p, id, h.url, crateCache(t, p)))
		o, _ := liveOptions(t, id, openedCache(t, t.TempDir(), 0), h.url)
		got := facts(t, shown(t, openedLive(t, o)))
		compare(t, got, theirs)
		if len(got) < scale(t)/2 {
			t.Errorf("%d names", len(got))
		}
		t.Logf("%d names are equal by both", len(got))
	}
}

// forCrate removes from a tree everything that the other client does not support: xattrs,
// hard links, uncompressed files, hidden entries, nanoseconds, variables in symbolic links,
// and names that are not UTF-8.
func forCrate(tree cvmfsrepo.Tree) cvmfsrepo.Tree {
	for p, n := range tree {
		if !utf8.ValidString(p) || n.Hidden || len(n.Xattrs) > 0 || strings.Contains(n.Target, "$") {
			delete(tree, p)
		}
		n.Group, n.Plain, n.Time = 0, false, n.Time.Truncate(time.Second)
	}
	return tree
}
