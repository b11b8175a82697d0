package fasta

// ids is a set of ids, each as 96 bits of hashes: for a hundred million ids, which would
// take 1.5 to 3 GB as text, the odds that two different ones look equal are one in ten
// trillion. It is a hash table with linear probing; a first hash of 0 marks an empty slot.
type ids struct {
	first  []uint64
	second []uint32
	used   int
}

// add adds an id and reports whether it was in the set before.
func (s *ids) add(first uint64, second uint32) bool {
	if first == 0 {
		first = 1
	}
	if 4*s.used >= 3*len(s.first) {
		s.grow()
	}
	i := s.place(first, second)
	if s.first[i] != 0 {
		return true
	}
	s.first[i], s.second[i] = first, second
	s.used++
	return false
}

// place returns the slot of an id, or the slot to add it in.
func (s *ids) place(first uint64, second uint32) uint64 {
	mask := uint64(len(s.first) - 1)
	i := first & mask
	for s.first[i] != 0 && (s.first[i] != first || s.second[i] != second) {
		i = (i + 1) & mask
	}
	return i
}

func (s *ids) grow() {
	old := *s
	n := max(1<<10, 2*len(old.first))
	s.first, s.second = make([]uint64, n), make([]uint32, n)
	for i, first := range old.first {
		if first != 0 {
			j := s.place(first, old.second[i])
			s.first[j], s.second[j] = first, old.second[i]
		}
	}
}
