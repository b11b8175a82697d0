package cvmfs

import (
	"container/list"
	"sync"
)

// lru keeps the values that were used last.
type lru[K comparable, V any] struct {
	most int

	mu    sync.Mutex
	order list.List // of *pair[K, V], the newest first
	m     map[K]*list.Element
}

type pair[K comparable, V any] struct {
	k K
	v V
}

func newLRU[K comparable, V any](most int) *lru[K, V] {
	return &lru[K, V]{most: most, m: map[K]*list.Element{}}
}

func (l *lru[K, V]) get(k K) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.m[k]
	if e == nil {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*pair[K, V]).v, true
}

func (l *lru[K, V]) put(k K, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.m[k]; e != nil {
		e.Value.(*pair[K, V]).v = v
		l.order.MoveToFront(e)
		return
	}
	l.m[k] = l.order.PushFront(&pair[K, V]{k, v})
	if l.order.Len() > l.most {
		last := l.order.Back()
		l.order.Remove(last)
		delete(l.m, last.Value.(*pair[K, V]).k)
	}
}
