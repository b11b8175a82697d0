package libraries

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Bounds for the values in a file.
const (
	maxPrograms = 64       // program headers
	maxDynamic  = 64 << 10 // bytes of the dynamic section
	maxNeeded   = 128      // names
	maxName     = 4096     // bytes of a name or a list of directories
)

var errNotLinked = errors.New("it is not dynamically linked, or in an unknown way")

// needs lists the libraries that a file is linked with.
type needs struct {
	names       []string
	directories []string // absolute, to search first
	interpreter string   // absolute; "" in a library
}

// isHead reports whether b may be the head of a program or library.
func isHead(b []byte) bool {
	return len(b) >= 64 && string(b[:len(elf.ELFMAG)]) == elf.ELFMAG &&
		elf.Class(b[elf.EI_CLASS]) == elf.ELFCLASS64 && elf.Data(b[elf.EI_DATA]) == elf.ELFDATA2LSB
}

// readNeeds reads the needs of the file at the start of r.
func readNeeds(r io.ReaderAt) (*needs, error) {
	var h elf.Header64
	if err := decode(r, 0, &h); err != nil {
		return nil, err
	}
	if !isHead(append(h.Ident[:], make([]byte, 64)...)) || h.Phnum == 0 || h.Phnum > maxPrograms ||
		int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phoff > 1<<40 {
		return nil, errNotLinked
	}
	programs := make([]elf.Prog64, h.Phnum)
	if err := decode(r, int64(h.Phoff), programs); err != nil {
		return nil, err
	}
	var n needs
	var entries []elf.Dyn64
	for _, p := range programs {
		var err error
		switch elf.ProgType(p.Type) {
		case elf.PT_DYNAMIC:
			if p.Filesz > maxDynamic || p.Off > 1<<40 {
				return nil, errNotLinked
			}
			entries = make([]elf.Dyn64, int(p.Filesz)/binary.Size(elf.Dyn64{}))
			err = decode(r, int64(p.Off), entries)
		case elf.PT_INTERP:
			if p.Off <= 1<<40 {
				n.interpreter, err = text(r, int64(p.Off))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if entries == nil {
		return nil, errNotLinked
	}
	at := func(tag elf.DynTag) (uint64, bool) {
		i := slices.IndexFunc(entries, func(e elf.Dyn64) bool { return elf.DynTag(e.Tag) == tag })
		if i < 0 {
			return 0, false
		}
		return entries[i].Val, true
	}
	table, ok := at(elf.DT_STRTAB)
	if !ok {
		return nil, errNotLinked
	}
	size, _ := at(elf.DT_STRSZ)
	begin, err := place(programs, table)
	if err != nil {
		return nil, err
	}
	name := func(val uint64) (string, error) {
		if val >= size || size > 1<<40 {
			return "", fmt.Errorf("a name at %d of %d bytes of names", val, size)
		}
		return text(r, begin+int64(val))
	}
	for _, e := range entries {
		switch elf.DynTag(e.Tag) {
		case elf.DT_NULL:
			return &n, nil
		case elf.DT_NEEDED:
			one, err := name(e.Val)
			if err != nil {
				return nil, err
			}
			if n.names = append(n.names, one); len(n.names) >= maxNeeded {
				return &n, nil
			}
		case elf.DT_RUNPATH, elf.DT_RPATH:
			list, err := name(e.Val)
			if err != nil {
				return nil, err
			}
			for dir := range strings.SplitSeq(list, ":") {
				if strings.HasPrefix(dir, "/") && !strings.Contains(dir, "$") {
					n.directories = append(n.directories, dir)
				}
			}
		}
	}
	return &n, nil
}

// place returns the offset in the file of the byte that is mapped at an address.
func place(programs []elf.Prog64, address uint64) (int64, error) {
	for _, p := range programs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && address >= p.Vaddr && address-p.Vaddr < p.Filesz && p.Off <= 1<<40 && p.Filesz <= 1<<40 {
			return int64(p.Off + (address - p.Vaddr)), nil
		}
	}
	return 0, errNotLinked
}

// decode reads a value of fixed size.
func decode(r io.ReaderAt, off int64, into any) error {
	return binary.Read(io.NewSectionReader(r, off, int64(binary.Size(into))), binary.LittleEndian, into)
}

// text reads a string that ends with a NUL.
func text(r io.ReaderAt, off int64) (string, error) {
	b := make([]byte, maxName)
	for n := 0; n < len(b); {
		step := min(n+256, len(b))
		got, err := r.ReadAt(b[n:step], off+int64(n))
		if end := bytes.IndexByte(b[:n+got], 0); end >= 0 {
			return string(b[:end]), nil
		}
		if err != nil {
			return "", err
		}
		n = step
	}
	return "", errNotLinked
}
