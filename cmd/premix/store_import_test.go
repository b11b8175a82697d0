package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"premix/internal/testkit/cvmfsrepo"
)

// cvmfsCommand serves a CVMFS repository to a script:
//
//	cvmfs publish REVISION   serve a revision at $CVMFS, with the master key in $CVMFS_KEY
//	cvmfs lie                serve wrong objects with the same signatures
//	cvmfs expire             serve an expired whitelist until the next publish
//	cvmfs gone               do not answer until the next publish
//
// $CVMFS_OTHER_KEY is a master key that signs nothing.
func cvmfsCommand() func(*testscript.TestScript, bool, []string) {
	type repository struct {
		id     *cvmfsrepo.Identity
		mu     sync.Mutex
		now    *cvmfsrepo.Published
		states map[string]*cvmfsrepo.Published
	}
	var mu sync.Mutex
	all := map[*testscript.TestScript]*repository{}
	return func(ts *testscript.TestScript, neg bool, args []string) {
		mu.Lock()
		r := all[ts]
		mu.Unlock()
		if r == nil {
			r = &repository{states: map[string]*cvmfsrepo.Published{}}
			var err error
			r.id, err = cvmfsrepo.NewIdentityIn(ts.Getenv("WORK"), 0, 1)
			ts.Check(err)
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				r.mu.Lock()
				p := r.now
				r.mu.Unlock()
				if p == nil {
					panic(http.ErrAbortHandler)
				}
				p.ServeHTTP(w, q)
			}))
			ts.Defer(web.Close)
			r.id.TTL = 1
			ts.Setenv("CVMFS", web.URL+"/cvmfs/@fqrn@")
			ts.Setenv("CVMFS_KEY", r.id.Public)
			other := ts.MkAbs("other")
			ts.Check(os.Mkdir(other, 0o755))
			stranger, err := cvmfsrepo.NewIdentityIn(other, 1, 2)
			ts.Check(err)
			ts.Setenv("CVMFS_OTHER_KEY", stranger.Public)
			mu.Lock()
			all[ts] = r
			mu.Unlock()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case !neg && len(args) == 2 && (args[0] == "publish" || args[0] == "change"):
			if r.now = r.states[args[1]]; r.now == nil {
				revision, err := strconv.Atoi(args[1])
				ts.Check(err)
				tree := cvmfsrepo.Sample(false)
				if args[0] == "change" {
					tree["/nested/deeper/t\xff ü"].Content = []byte("another content\n")
					tree["/sub/plain"].Content = []byte("also another")
				}
				r.now, err = cvmfsrepo.PublishIn(ts.Getenv("WORK"), tree, cvmfsrepo.SHA1, r.id, revision)
				ts.Check(err)
				r.states[args[1]] = r.now
			}
			expire(r.now, r.id, 48*time.Hour)
		case !neg && len(args) == 1 && args[0] == "lie":
			r.now = r.now.Lie()
		case !neg && len(args) == 1 && args[0] == "gone":
			r.now = nil
		case !neg && len(args) == 1 && args[0] == "expire":
			expire(r.now, r.id, -time.Minute)
		default:
			ts.Fatalf("usage: cvmfs publish REVISION | cvmfs change REVISION | cvmfs lie | cvmfs expire | cvmfs gone")
		}
	}
}

// expire gives a repository a whitelist that expires after a time.
func expire(p *cvmfsrepo.Published, id *cvmfsrepo.Identity, after time.Duration) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Files[".cvmfswhitelist"] = id.Whitelist(cvmfsrepo.SHA1, cvmfsrepo.Name, time.Now().Add(after))
}
