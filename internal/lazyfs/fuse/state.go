package fuse

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Kinds of mounts in a state.
const (
	kindImage = "image"
	kindTree  = "tree"
	kindFiles = "files"
)

// state is everything that a server must know of a connection that it takes over. It is
// little: node numbers follow from the image, files have no handles, and no request
// changes anything.
type state struct {
	Version int    `json:"version"` // 1
	Kind    string `json:"kind"`
	Dir     string `json:"dir"`    // where it is mounted
	Helper  bool   `json:"helper"` // mounted by fusermount3, which also has to unmount it
	Size    int64  `json:"size"`   // of the image, in bytes
	Minor   uint32 `json:"minor"`  // version of the protocol; 0: INIT was not yet answered
	Flags   uint64 `json:"flags"`  // of INIT, as negotiated
}

const stateVersion = 1

// State returns the state of the connection for a later Resume. It is JSON, and does
// not change while the server lives.
func (s *Server) State() []byte {
	b, err := json.Marshal(s.state)
	if err != nil {
		panic(err) // cannot happen: numbers and strings can be encoded
	}
	return b
}

// Resume takes over the connection of a server that has ended without unmounting, most
// often because its process was killed. dev is its File, which another process has kept
// open, st its State, and img the same image. Readers see only a delay: their pending
// requests are read again.
//
// On success the server owns dev. The predecessor must have ended: otherwise both would
// receive requests, and requests that one has received are delivered to the other
// again; the later answer would be lost, but not wrong.
//
// Linux delivers requests again since 6.9. On an older kernel the readers that waited
// for the dead server wait until the connection ends. Resume then refuses with
// ErrKernel; closing dev gives all of them an error.
func Resume(dev *os.File, st []byte, img Image, opts Options) (*Server, error) {
	return resume(dev, st, img.Size(), opts, func(have state) (fileSystem, error) { return newFileSystem(have, img, opts) })
}

// resume is Resume for the file system that serve returns.
func resume(dev *os.File, st []byte, size int64, opts Options, serve func(state) (fileSystem, error)) (*Server, error) {
	var have state
	if err := json.Unmarshal(st, &have); err != nil {
		return nil, &StateError{err.Error()}
	}
	switch {
	case have.Version != stateVersion:
		return nil, &StateError{fmt.Sprintf("its state has version %d, not %d", have.Version, stateVersion)}
	case have.Size != size:
		return nil, &StateError{fmt.Sprintf("it serves an image of %d bytes, not of %d", have.Size, size)}
	case have.Minor != 0 && have.Flags&initHasResend == 0:
		return nil, fmt.Errorf("%w: a connection can be resumed from Linux 6.9 on", ErrKernel)
	}
	opts = opts.withDefaults()
	fs, err := serve(have)
	if err != nil {
		return nil, err
	}
	s := newServer(fs, dev, have, opts)
	if have.Minor != 0 {
		close(s.ready)
		s.readyOn.Do(func() {})
	}
	// Writing a notification to a connection that has ended would not fail.
	poll := []unix.PollFd{{Fd: int32(s.fd)}}
	if _, err := unix.Poll(poll, 0); err == nil && poll[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0 {
		s.cancel()
		return nil, ErrGone
	}
	// Before the first request is received: requests that this server receives must not
	// be delivered twice.
	if err := s.notify(notifyResend, nil); err != nil {
		s.cancel()
		return nil, fmt.Errorf("%w: %w", ErrGone, os.NewSyscallError("write /dev/fuse", err))
	}
	s.start()
	return s, nil
}

// newFileSystem returns the file system for a connection of this state.
func newFileSystem(st state, img Image, opts Options) (fileSystem, error) {
	switch st.Kind {
	case kindImage:
		return &imageFS{img: img, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	case kindTree:
		return &treeFS{img: img, own: opts.Own}, nil
	}
	return nil, &StateError{fmt.Sprintf("%q is not a kind of mount", st.Kind)}
}

// notify sends the kernel a message that is not a reply.
func (s *Server) notify(code int32, body []byte) error {
	msg := slices.Concat(make([]byte, outHeaderSize), body)
	putOutHeader(msg, len(msg), code, 0)
	return s.write(msg)
}
