package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// operation is one way to use a tree. A separate process does it with plain system calls,
// so that it measures only the kernel and the file system.
type operation struct {
	name string
	unit string // B/s or 1/s; do returns the number of bytes or operations
	do   func(*probe) (int64, error)
}

var operations = []operation{
	{"readdir", "1/s", (*probe).readdir},
	{"stat", "1/s", (*probe).stat},
	{"open", "1/s", (*probe).open},
	{"read-small", "1/s", (*probe).readSmall},
	{"sequential", "B/s", (*probe).sequential},
	{"random-4k", "1/s", (*probe).random},
	{"mmap", "B/s", (*probe).mmap},
}

// probe is the input of an operation.
type probe struct {
	dir   string
	paths []string // below dir
	count int      // random reads
	buf   []byte
}

// probeMain is `probe -op NAME -n ROUNDS -paths FILE DIR...`. It prints the rates of
// the rounds in each directory as an array of JSON arrays. Directories alternate round
// by round, so that all meet the same load of the machine.
//
// Paths are relative to the directory. Otherwise the depth of a contender's mount point
// would count: it takes a seventh of the time of a stat(2) of a warm file.
func probeMain(args []string) error {
	flags := flag.NewFlagSet("probe", flag.ContinueOnError)
	name := flags.String("op", "", "operation")
	rounds := flags.Int("n", 1, "rounds")
	paths := flags.String("paths", "", "list of the regular files")
	files := flags.Int("files", smallFiles, "number of files to use")
	count := flags.Int("count", 1000, "random reads")
	if err := flags.Parse(args); err != nil {
		return err
	}
	i := slices.IndexFunc(operations, func(o operation) bool { return o.name == *name })
	if i < 0 || flags.NArg() == 0 {
		return errors.New("usage: probe -op NAME -paths FILE DIR [DIR...]")
	}
	p := &probe{dir: ".", count: *count, buf: make([]byte, 1<<20)}
	text, err := os.ReadFile(*paths)
	if err != nil {
		return err
	}
	for _, path := range lines(text) {
		if path != bigFile && len(p.paths) < *files {
			p.paths = append(p.paths, path)
		}
	}
	rates := make([][]float64, flags.NArg())
	for range *rounds {
		for at, dir := range flags.Args() {
			if err := unix.Chdir(dir); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			begin := time.Now()
			n, err := operations[i].do(p)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", *name, dir, err)
			}
			rates[at] = append(rates[at], float64(n)/time.Since(begin).Seconds())
		}
	}
	return json.NewEncoder(os.Stdout).Encode(rates)
}

// readdir lists all directories.
func (p *probe) readdir() (n int64, err error) {
	var list func(dir string) error
	list = func(dir string) error {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var names []string
		for {
			got, err := unix.Getdents(fd, p.buf[:32<<10])
			if err != nil {
				return err
			}
			if got == 0 {
				break
			}
			_, _, names = unix.ParseDirent(p.buf[:got], -1, names)
		}
		n += int64(len(names))
		for _, name := range names {
			// In this tree the name identifies a directory. d_type would too, but
			// x/sys/unix does not return it.
			if !strings.Contains(name, ".") && name != bigFile {
				if err := list(dir + "/" + name); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return n, list(p.dir)
}

func (p *probe) stat() (int64, error) {
	var st unix.Stat_t
	for _, path := range p.paths {
		if err := unix.Lstat(path, &st); err != nil {
			return 0, err
		}
	}
	return int64(len(p.paths)), nil
}

func (p *probe) open() (int64, error) {
	for _, path := range p.paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		unix.Close(fd)
	}
	return int64(len(p.paths)), nil
}

func (p *probe) readSmall() (int64, error) {
	for _, path := range p.paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		for {
			n, err := unix.Read(fd, p.buf[:128<<10])
			if err != nil {
				unix.Close(fd)
				return 0, err
			}
			if n == 0 {
				break
			}
		}
		unix.Close(fd)
	}
	return int64(len(p.paths)), nil
}

// big opens the large file.
func (p *probe) big() (fd int, size int64, err error) {
	if fd, err = unix.Open(filepath.Join(p.dir, bigFile), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return 0, 0, err
	}
	return fd, st.Size, nil
}

func (p *probe) sequential() (total int64, err error) {
	fd, _, err := p.big()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, p.buf)
		if err != nil || n == 0 {
			return total, err
		}
		total += int64(n)
	}
}

// random reads 4 KiB at random offsets, the same for all contenders.
func (p *probe) random() (int64, error) {
	fd, size, err := p.big()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	r := rand.New(rand.NewPCG(3, 3))
	for range p.count {
		if n, err := unix.Pread(fd, p.buf[:4<<10], r.Int64N(size>>12)<<12); err != nil || n != 4<<10 {
			return 0, fmt.Errorf("read of %d bytes: %w", n, err)
		}
	}
	return int64(p.count), nil
}

// mmap reads a byte of each page of a mapping, in order.
func (p *probe) mmap() (int64, error) {
	fd, size, err := p.big()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	var sum byte
	for at := 0; at < len(m); at += 4 << 10 {
		sum += m[at]
	}
	p.buf[0] = sum // use the sum, so that the compiler keeps the reads
	return size, unix.Munmap(m)
}
