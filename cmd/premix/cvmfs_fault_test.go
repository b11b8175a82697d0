package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/cvmfsrepo"
)

// newRepository is like newFarm with a CVMFS repository instead of a tree. mount mounts it.
func newRepository(t *testing.T) (f *farm, mount func()) {
	t.Helper()
	f = &farm{dir: t.TempDir(), files: map[string][]byte{}}
	f.mkdir(t, "home", "mnt")
	f.write(t, "home/node.yaml", []byte(patient))
	random := rand.NewChaCha8([32]byte{1})
	tree := cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}, "/small": {Mode: unix.S_IFDIR | 0o755, Nested: true}}
	add := func(name string, size, chunk int) {
		content := make([]byte, size)
		random.Read(content)
		f.files[name] = content
		f.names = append(f.names, name)
		tree["/"+name] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: content, Chunk: chunk}
	}
	for i := range 40 {
		add(fmt.Sprintf("small/f%d", i), 1+i*i*17, 0)
	}
	for i := range 4 {
		add(fmt.Sprintf("large%d", i), 1<<20+i*1000, 300_000)
	}
	id, err := cvmfsrepo.NewIdentityIn(f.dir, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	published, err := cvmfsrepo.PublishIn(t.TempDir(), tree, cvmfsrepo.SHAKE128, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(published)
	t.Cleanup(func() {
		f.gone(t)
		server.CloseClientConnections()
		server.Close()
	})
	return f, func() {
		t.Helper()
		f.ok(t, "mount", "--config", f.path("none"), "--master-key", id.Public, "--server", server.URL+"/cvmfs/@fqrn@", "cvmfs://"+cvmfsrepo.Name, f.path("mnt"))
	}
}

// A reader does not notice when the worker of a mounted repository is killed. When the whole node
// is killed, reads fail until the next node mounts the repository again.
func TestRepositoryKilled(t *testing.T) {
	if !apart(t) {
		return
	}
	f, mount := newRepository(t)
	mount()
	r := f.readers(t, 20, false)
	for range 10 {
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
		kill(t, f.status(t).Worker)
	}
	r.end(t)
	f.whole(t)
	for range 2 {
		s := f.status(t)
		kill(t, s.Supervisor, s.Worker)
		large := f.names[len(f.names)-1]
		await(t, "an error", func() bool { return f.check(large) != nil })
		if err := f.check(large); !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("read from a dead mount: %v", err)
		}
		f.ok(t, "node", "start")
		f.whole(t)
		if s := f.status(t); len(s.Mounts) != 1 || s.Mounts[0].State != "mounted" || s.Mounts[0].Revision != 1 {
			t.Errorf("%+v", s.Mounts)
		}
	}
	s := f.status(t)
	kill(t, s.Supervisor, s.Worker)
	f.ok(t, "umount", f.path("mnt"))
}

// An ordinary user can mount a repository through fusermount3.
func TestOrdinaryUserMountsRepository(t *testing.T) {
	if !apart(t) {
		return
	}
	f, mount := newRepository(t)
	for _, name := range f.names {
		f.mkdir(t, filepath.Dir("src/"+name))
		f.write(t, "src/"+name, f.files[name])
	}
	f.ordinary(t)
	mount()
	f.sameAsOrdinary(t)
	s := f.status(t)
	if m := s.Mounts[0]; m.Backend != "fuse" || m.Revision != 1 {
		t.Errorf("%+v", m)
	}
	kill(t, s.Worker)
	f.sameAsOrdinary(t)
	s = f.status(t)
	kill(t, s.Supervisor, s.Worker)
	f.ok(t, "node", "start")
	f.sameAsOrdinary(t)
	f.ok(t, "umount", f.path("mnt"))
	if list, err := os.ReadDir(f.path("mnt")); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}
