package frozen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// restorer is the loop that executes a list of system calls: rbx points to the
// next entry. It stops at a breakpoint after the last entry, or at an entry
// whose call did not give the wanted result.
var restorer = []byte{
	0x48, 0x8b, 0x03, //             loop: mov rax, [rbx]       number
	0x48, 0x83, 0xf8, 0xff, //             cmp rax, -1
	0x74, 0x3d, //                         je  end
	0x48, 0x8b, 0x7b, 0x08, //             mov rdi, [rbx+8]     arguments
	0x48, 0x8b, 0x73, 0x10, //             mov rsi, [rbx+16]
	0x48, 0x8b, 0x53, 0x18, //             mov rdx, [rbx+24]
	0x4c, 0x8b, 0x53, 0x20, //             mov r10, [rbx+32]
	0x4c, 0x8b, 0x43, 0x28, //             mov r8, [rbx+40]
	0x4c, 0x8b, 0x4b, 0x30, //             mov r9, [rbx+48]
	0x0f, 0x05, //                         syscall
	0x48, 0x89, 0x43, 0x40, //             mov [rbx+64], rax    result
	0x48, 0x8b, 0x4b, 0x38, //             mov rcx, [rbx+56]    wanted
	0x48, 0x83, 0xf9, 0xff, //             cmp rcx, -1
	0x74, 0x07, //                         je  any
	0x48, 0x39, 0xc8, //                   cmp rax, rcx
	0x75, 0x10, //                         jne end
	0xeb, 0x08, //                         jmp next
	0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, // any: cmp rax, -4096
	0x77, 0x06, //                         ja  end
	0x48, 0x83, 0xc3, 0x50, //       next: add rbx, 80
	0xeb, 0xba, //                         jmp loop
	0xcc, //                          end: int3
}

const (
	entrySize = 80
	hugeSize  = 2 << 20

	// anyResult accepts every result but an error.
	anyResult = ^uint64(0)
	// noCall ends a list.
	noCall = ^uint64(0)
	// inData marks an argument that is an offset into the list's data. No
	// address, descriptor or flag has these bits.
	inData = 0xda7a << 48
)

// call is one system call of a list.
type call struct {
	what string // for messages
	nr   uint64
	args [6]uint64
	want uint64
}

// list is a list of system calls, with the data that their arguments point to.
type list struct {
	calls    []call
	data     []byte
	pointers []pointer
}

// pointer is a place in a list's data that holds the address of another.
type pointer struct{ at, to uint64 }

// add appends a call whose result must be want.
func (l *list) add(what string, want, nr uint64, args ...uint64) {
	c := call{what: what, nr: nr, want: want}
	copy(c.args[:], args)
	l.calls = append(l.calls, c)
}

// bytes puts b into the list's data and returns an argument that points to it.
func (l *list) bytes(b []byte) uint64 {
	for len(l.data)%8 != 0 {
		l.data = append(l.data, 0)
	}
	at := uint64(len(l.data))
	l.data = append(l.data, b...)
	return inData | at
}

// str calls bytes for a string and a zero byte after it.
func (l *list) str(s string) uint64 { return l.bytes(append([]byte(s), 0)) }

// space calls bytes for n zeros.
func (l *list) space(n int) uint64 { return l.bytes(make([]byte, n)) }

// size returns the size in bytes of the region that the list needs, with the code.
func (l *list) size() uint64 {
	return pageUp(pageSize + entrySize*uint64(len(l.calls)+1) + uint64(len(l.data)))
}

func pageUp(n uint64) uint64 { return (n + pageSize - 1) &^ (pageSize - 1) }

// dataAt returns the address of the data of a list in a region.
func (l *list) dataAt(region uint64) uint64 {
	return region + pageSize + entrySize*uint64(len(l.calls)+1)
}

// encode returns the content of a region with the list at an address, without the code page.
func (l *list) encode(region uint64) []byte {
	data := l.dataAt(region)
	b := make([]byte, 0, l.size())
	put := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	for _, c := range l.calls {
		put(c.nr)
		for _, a := range c.args {
			if a&(0xffff<<48) == inData {
				a = data + a&^(0xffff<<48)
			}
			put(a)
		}
		put(c.want)
		put(0)
		put(0)
	}
	put(noCall)
	b = append(b, make([]byte, entrySize-8)...)
	start := uint64(len(b))
	b = append(b, l.data...)
	for _, p := range l.pointers {
		binary.LittleEndian.PutUint64(b[start+p.at:], data+p.to)
	}
	return b
}

// place writes the restorer and a list into a region of a held process that is
// mapped for reading and writing, and makes the code page executable.
func (l *list) place(p *tracer.Proc, region uint64) error {
	if err := p.Write(region, restorer); err != nil {
		return err
	}
	if err := p.Write(region+pageSize, l.encode(region)); err != nil {
		return err
	}
	_, err := p.Syscall(unix.SYS_MPROTECT, region, pageSize, unix.PROT_READ|unix.PROT_EXEC)
	return err
}

// run executes a list that was placed in a region, from one thread, and returns
// the threads that it made.
func (l *list) run(p *tracer.Proc, tid int, region uint64) ([]int, error) {
	begin := region + pageSize
	rbx, made, err := p.RunCode(tid, region, begin)
	if err != nil {
		return nil, err
	}
	n := int(rbx-begin) / entrySize
	if n == len(l.calls) {
		return made, nil
	}
	if n < 0 || n > len(l.calls) {
		return nil, fmt.Errorf("the restorer stopped at %#x", rbx)
	}
	var b [8]byte
	if err := p.Read(rbx+64, b[:]); err != nil {
		return nil, err
	}
	c, got := l.calls[n], int64(binary.LittleEndian.Uint64(b[:]))
	if got < 0 && got > -4096 {
		return nil, fmt.Errorf("%s: %w", c.what, syscall.Errno(-got))
	}
	return nil, fmt.Errorf("%s: the call gave %#x instead of %#x", c.what, uint64(got), c.want)
}

// execute runs a list in a held process once, from one thread, in memory that
// it maps and unmaps, and returns the list's data afterwards.
func (l *list) execute(p *tracer.Proc, tid int) ([]byte, error) {
	_, data, err := l.results(p, tid)
	return data, err
}

// results does the same as execute, and also returns the result of each call.
func (l *list) results(p *tracer.Proc, tid int) (results []uint64, data []byte, err error) {
	size := l.size()
	region, err := p.Alloc(int(size))
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, p.Free(region, int(size))) }()
	if err := l.place(p, region); err != nil {
		return nil, nil, err
	}
	if _, err := l.run(p, tid, region); err != nil {
		return nil, nil, err
	}
	b := make([]byte, size-pageSize)
	if err := p.Read(region+pageSize, b); err != nil {
		return nil, nil, err
	}
	for i := range l.calls {
		results = append(results, binary.LittleEndian.Uint64(b[entrySize*i+64:]))
	}
	at := l.dataAt(0) - pageSize
	return results, b[at : at+uint64(len(l.data))], nil
}
