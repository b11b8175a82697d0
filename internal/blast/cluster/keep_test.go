package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"premix/internal/blast/database"
)

// A node does not take over the fragments of a node that was not asked for a while, because
// they had no database in common.
func TestAcceptAfterPause(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skipf("there is no tmpfs to write to: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	h, err := database.OpenHoldings(filepath.Join(shm, "node"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	n := &Node{o: Options{Lost: defaultLost}, holdings: h, placed: map[string]*placed{}, peers: map[string]*peer{}}
	p := &placed{Placement: Placement{Name: "db", ID: "1", Replicas: 1, Nodes: []string{"a", "b"}, Order: [][]int{{1, 0}}}}
	n.accept(p)
	if got, f, load := n.next(); got != nil {
		t.Errorf("the node takes over fragment %d (%v) of a node that it has not asked yet", f, load)
	}
	n.peers["b"].seen = time.Now().Add(-time.Hour)
	if got, _, load := n.next(); got != p || !load {
		t.Error("the node does not take over the fragment of a lost node")
	}
	delete(n.placed, "db")
	n.accept(p)
	if got, f, load := n.next(); got != nil {
		t.Errorf("the node takes over fragment %d (%v) at once when the database is placed again", f, load)
	}
}
