package scheduling

import (
	"math"

	"premix/internal/replay/trace"
)

// queue holds the jobs that wait for a pool, in order. See doc.go.
type queue struct {
	root  int32
	free  int32 // list of unused nodes, linked by left
	n     int
	nodes []waiting
}

// waiting is a node of the treap. Index 0 is the empty tree.
type waiting struct {
	key      key
	estimate trace.Time
	shortest trace.Time // estimate in the subtree
	cores    int32
	fewest   int32 // cores in the subtree
	left     int32
	right    int32
	height   uint32 // priority in the treap
}

// key orders jobs: lower keys first.
type key struct {
	tier  int32 // negated: the highest tier comes first
	job   int32
	value int64
}

func (k key) before(o key) bool {
	if k.tier != o.tier {
		return k.tier < o.tier
	}
	if k.value != o.value {
		return k.value < o.value
	}
	return k.job < o.job
}

// first is less than all keys.
var first = key{tier: math.MinInt32, value: math.MinInt64, job: -1}

func newQueue() *queue {
	return &queue{nodes: []waiting{{shortest: math.MaxInt64, fewest: math.MaxInt32}}}
}

func (q *queue) pull(n int32) {
	p := &q.nodes[n]
	l, r := &q.nodes[p.left], &q.nodes[p.right]
	p.shortest = min(p.estimate, l.shortest, r.shortest)
	p.fewest = min(p.cores, l.fewest, r.fewest)
}

func (q *queue) add(k key, cores int32, estimate trace.Time) {
	n := q.free
	if n == 0 {
		n = int32(len(q.nodes))
		q.nodes = append(q.nodes, waiting{})
	} else {
		q.free = q.nodes[n].left
	}
	// It is a hash of the job's index, so that equal histories give equal trees.
	h := uint32(k.job) * 0x9e3779b1
	h ^= h >> 15
	h *= 0x85ebca6b
	h ^= h >> 13
	q.nodes[n] = waiting{key: k, cores: cores, fewest: cores, estimate: estimate, shortest: estimate, height: h}
	q.root = q.insert(q.root, n)
	q.n++
}

func (q *queue) insert(at, n int32) int32 {
	if at == 0 {
		return n
	}
	p, a := &q.nodes[n], &q.nodes[at]
	if p.height > a.height {
		p.left, p.right = q.split(at, p.key)
		q.pull(n)
		return n
	}
	if p.key.before(a.key) {
		a.left = q.insert(a.left, n)
	} else {
		a.right = q.insert(a.right, n)
	}
	q.pull(at)
	return at
}

func (q *queue) split(at int32, k key) (l, r int32) {
	if at == 0 {
		return 0, 0
	}
	a := &q.nodes[at]
	if a.key.before(k) {
		a.right, r = q.split(a.right, k)
		q.pull(at)
		return at, r
	}
	l, a.left = q.split(a.left, k)
	q.pull(at)
	return l, at
}

func (q *queue) join(l, r int32) int32 {
	switch {
	case l == 0:
		return r
	case r == 0:
		return l
	case q.nodes[l].height > q.nodes[r].height:
		q.nodes[l].right = q.join(q.nodes[l].right, r)
		q.pull(l)
		return l
	}
	q.nodes[r].left = q.join(l, q.nodes[r].left)
	q.pull(r)
	return r
}

func (q *queue) remove(k key) {
	q.root = q.without(q.root, k)
}

func (q *queue) without(at int32, k key) int32 {
	if at == 0 {
		return 0
	}
	a := &q.nodes[at]
	switch {
	case a.key == k:
		joined := q.join(a.left, a.right)
		q.nodes[at] = waiting{left: q.free}
		q.free = at
		q.n--
		return joined
	case k.before(a.key):
		a.left = q.without(a.left, k)
	default:
		a.right = q.without(a.right, k)
	}
	q.pull(at)
	return at
}

// next returns the first key after k, which need not be in the queue.
func (q *queue) next(k key) (key, bool) {
	var found key
	ok := false
	for at := q.root; at != 0; {
		a := &q.nodes[at]
		if k.before(a.key) {
			found, ok = a.key, true
			at = a.left
		} else {
			at = a.right
		}
	}
	return found, ok
}

// candidate returns the first job after k that needs at most cores, and whose estimate is
// at most window or whose cores are at most spare.
func (q *queue) candidate(k key, cores int64, window trace.Time, spare int64) (key, bool) {
	at := q.search(q.root, k, cores, window, spare)
	return q.nodes[at].key, at != 0
}

func (q *queue) search(at int32, k key, cores int64, window trace.Time, spare int64) int32 {
	for at != 0 {
		a := &q.nodes[at]
		if int64(a.fewest) > cores || a.shortest > window && int64(a.fewest) > spare {
			return 0
		}
		if k.before(a.key) {
			if found := q.search(a.left, k, cores, window, spare); found != 0 {
				return found
			}
			if int64(a.cores) <= cores && (a.estimate <= window || int64(a.cores) <= spare) {
				return at
			}
		}
		at = a.right
	}
	return 0
}

// clear empties the queue and keeps its memory.
func (q *queue) clear() {
	q.nodes = q.nodes[:1]
	q.root, q.free, q.n = 0, 0, 0
}

// all calls f with all keys in order.
func (q *queue) all(f func(k key) bool) {
	q.walk(q.root, f)
}

func (q *queue) walk(at int32, f func(k key) bool) bool {
	if at == 0 {
		return true
	}
	a := q.nodes[at]
	return q.walk(a.left, f) && f(a.key) && q.walk(a.right, f)
}
