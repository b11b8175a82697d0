package service

import (
	"fmt"
	"os"
	"slices"
	"time"

	"premix/internal/kit/units"
)

// tooLarge returns why a result cannot be stored, or nil.
func (s *Service) tooLarge(n int64) error {
	most := min(s.o.Limits.Bytes, s.o.Limits.UserBytes)
	if n <= most {
		return nil
	}
	return fmt.Errorf("the result has %s, and the results of a user may have %s: ask for fewer hits, or send fewer queries", units.Size(n), units.Size(most))
}

// makeRoom removes the oldest results until a file of n bytes fits into the limit. The limit
// is for results: jobs that wait are never removed. The caller holds mu.
func (s *Service) makeRoom(n int64) {
	if s.stored+n <= s.o.Limits.Bytes {
		return
	}
	for _, j := range s.oldest() {
		if s.stored+n <= s.o.Limits.Bytes {
			return
		}
		s.evict(j)
	}
}

// free removes the oldest results until n bytes of files are gone, and reports whether any
// is. The caller holds mu.
func (s *Service) free(n int64) bool {
	before := s.stored
	for _, j := range s.oldest() {
		if before-s.stored >= n {
			break
		}
		s.evict(j)
	}
	return s.stored < before
}

// shrinkUsers removes the oldest results of each user until the others are within the limit.
// The last one stays. The caller holds mu.
func (s *Service) shrinkUsers() {
	sums := map[string]int64{}
	over := false
	for _, j := range s.jobs {
		sums[j.User] += j.bytes()
		over = over || sums[j.User] > s.o.Limits.UserBytes
	}
	if !over {
		return
	}
	left := map[string]int{}
	list := s.oldest()
	for _, j := range list {
		left[j.User]++
	}
	for _, j := range list {
		if sums[j.User] > s.o.Limits.UserBytes && left[j.User] > 1 {
			sums[j.User] -= j.bytes()
			left[j.User]--
			s.evict(j)
		}
	}
}

func (s *Service) evict(j *job) {
	s.metrics.evicted.Inc()
	s.forget(j)
}

// oldest returns the jobs that have ended and do not wait for a further format: first those
// whose result was read, and of these the oldest first. The caller holds mu.
func (s *Service) oldest() []*job {
	var list []*job
	for _, j := range s.jobs {
		if !j.finished.IsZero() && !j.open() {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *job) int {
		if a.read != b.read {
			if a.read {
				return -1
			}
			return 1
		}
		return a.finished.Compare(b.finished)
	})
	return list
}

// open reports whether a result of the job is not there yet.
func (j *job) open() bool {
	for _, r := range j.results {
		if r.state == waiting || r.state == running {
			return true
		}
	}
	return false
}

// bytes returns the number of bytes that the job takes in files of results.
func (j *job) bytes() int64 {
	n := j.stored.Length
	for _, r := range j.results {
		n += r.place.Length
	}
	return n
}

// again puts the items of a scan back into the queue, since their results could not be
// stored. An accepted job is not lost while the disk is full.
func (s *Service) again(items []*item, err error) {
	s.o.Log.Error("results could not be written; their jobs are searched again", "jobs", len(items), "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.troubled(err)
	for _, i := range items {
		if s.jobs[i.job.ID] != i.job {
			i.result.state, i.result.err = failed, "the search was deleted"
			close(i.result.done)
			continue
		}
		i.result.state = waiting
		s.queue.add(i)
		s.queue.users[i.job.User].clock -= i.job.Letters // it is charged when the job is searched again
	}
}

// trouble is a disk to which results could not be written.
type trouble struct {
	err   error
	until time.Time // when scans are tried again
	pause time.Duration
}

// Pauses before a scan is tried again.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// troubled notes that results could not be stored. The caller holds mu.
func (s *Service) troubled(err error) {
	pause := min(max(firstPause, 2*s.trouble.pause), mostPause)
	s.trouble = trouble{err, time.Now().Add(pause), pause}
}

// health returns why accepted jobs cannot be answered now, or nil.
func (s *Service) health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble.err
}

// sizes finds the sizes of the files of results, and forgets the jobs whose files have gone:
// the journal does not record the removal of old results. It is for the start.
func (s *Service) sizes() {
	for file, users := range s.files {
		info, err := os.Stat(s.path("results", file))
		if err == nil {
			s.size[file] = info.Size()
			s.stored += info.Size()
			continue
		}
		for j := range users {
			s.forget(j)
		}
	}
}

// drop removes a file of results. The caller holds mu, or the service has not begun.
func (s *Service) drop(file string) {
	s.stored -= s.size[file]
	delete(s.size, file)
	s.remove("results", file)
}
