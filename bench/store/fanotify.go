package main

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// eventInodes reads events of fanotify(7), and closes their descriptors.
func eventInodes(b []byte) []uint64 {
	var inodes []uint64
	for len(b) >= unix.FAN_EVENT_METADATA_LEN {
		// struct fanotify_event_metadata: event_len u32, vers u8, reserved u8,
		// metadata_len u16, mask u64, fd s32, pid s32.
		length := binary.NativeEndian.Uint32(b)
		fd := int32(binary.NativeEndian.Uint32(b[16:]))
		if length < unix.FAN_EVENT_METADATA_LEN || int(length) > len(b) {
			break
		}
		b = b[length:]
		if fd < 0 {
			continue // FAN_NOFD: the queue overflowed
		}
		var st unix.Stat_t
		if unix.Fstat(int(fd), &st) == nil {
			inodes = append(inodes, st.Ino)
		}
		unix.Close(int(fd))
	}
	return inodes
}
