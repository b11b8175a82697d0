package frozen

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Input is an input file of a process that is frozen before it has opened it.
type Input struct {
	Name   string // relative to the working directory
	Status []byte // struct stat, as the process would read it; nil: it has none
}

// StatusPlace is a place in memory with a part of an input's struct stat. Start writes the
// part from the input of the new process there.
type StatusPlace struct {
	Address  uint64
	Input    string // Input.Name
	At, Size int    // of the part, bytes
}

// The layout of struct stat on this architecture, in bytes.
const (
	statusSize  = 144
	statusInode = 8
	statusBytes = 48 // st_size
	statusRead  = 72 // st_atim, of 16 bytes
	statusWrite = 88 // st_mtim.tv_sec
)

// neverRead is a size that no process reads, bytes. A second preparation has inputs of such a
// size if the process has not opened its inputs.
const neverRead = 1 << 40

// ReadInput returns an input file in a working directory.
func ReadInput(dir, name string) (Input, error) {
	status, err := readStatus(filepath.Join(dir, name))
	return Input{name, status}, err
}

// readStatus returns the struct stat of a file.
func readStatus(path string) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, st); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// isStatus reports whether memory has a struct stat, apart from the time of the last read,
// which the kernel changes.
func isStatus(memory, status []byte) bool {
	return bytes.Equal(memory[:statusRead], status[:statusRead]) && bytes.Equal(memory[statusRead+16:statusSize], status[statusRead+16:])
}

// findStatus reports whether the word at offset off of two memories, which begin at address
// start, belongs to the struct stat of an input in both, or is its inode, its size or its
// modification time in seconds. It makes the part of b equal to the part of a. A word that two
// inputs or two properties can explain is not explained.
func findStatus(inputs [2][]Input, start uint64, a, b []byte, off int) (StatusPlace, bool) {
	var words []StatusPlace
	for i, input := range inputs[0] {
		if i >= len(inputs[1]) || inputs[1][i].Name != input.Name || len(input.Status) != statusSize || len(inputs[1][i].Status) != statusSize {
			continue
		}
		sa, sb := input.Status, inputs[1][i].Status
		for k := 0; k < statusSize; k += 8 {
			from := off - k
			if from < 0 || from+statusSize > len(a) || !isStatus(a[from:], sa) || !isStatus(b[from:], sb) {
				continue
			}
			copy(b[from:from+statusSize], a[from:])
			return StatusPlace{start + uint64(from), input.Name, 0, statusSize}, true
		}
		for _, k := range []int{statusInode, statusBytes, statusWrite} {
			if k == statusBytes && binary.LittleEndian.Uint64(sb[k:]) < neverRead {
				continue // it may be the number of bytes that the process has read
			}
			if bytes.Equal(a[off:off+8], sa[k:k+8]) && bytes.Equal(b[off:off+8], sb[k:k+8]) {
				words = append(words, StatusPlace{start + uint64(off), input.Name, k, 8})
			}
		}
	}
	if len(words) != 1 {
		return StatusPlace{}, false
	}
	copy(b[off:off+8], a[off:])
	return words[0], true
}
