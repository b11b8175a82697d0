package netrelay

import "encoding/binary"

const (
	vnetHeader = 10 // struct virtio_net_hdr of <linux/virtio_net.h>
	ethernet   = 14
)

// wirePackets returns the number of packets that a cable would carry for one frame
// that was read with its virtio_net_hdr, and their size together.
func wirePackets(b []byte) (packets, size int) {
	if len(b) < vnetHeader {
		return 1, len(b)
	}
	segmented := b[1] != 0                             // gso_type
	segment := int(binary.NativeEndian.Uint16(b[4:6])) // gso_size: payload of each packet
	b = b[vnetHeader:]
	headers := tcpHeaders(b)
	if !segmented || segment == 0 || headers == 0 {
		return 1, len(b)
	}
	payload := len(b) - headers
	packets = max(1, (payload+segment-1)/segment)
	return packets, payload + packets*headers
}

// tcpHeaders returns the length of the Ethernet, IPv4 and TCP headers of a frame, or
// 0 for other headers. The kernel's hdr_len is a different length: the part of the
// packet that was contiguous in memory.
func tcpHeaders(b []byte) int {
	const ipv4, tcp = 0x0800, 6
	if len(b) < ethernet+20 || binary.BigEndian.Uint16(b[12:]) != ipv4 || b[ethernet+9] != tcp {
		return 0
	}
	at := ethernet + 4*int(b[ethernet]&0x0f)
	if len(b) < at+20 {
		return 0
	}
	return min(len(b), at+4*int(b[at+12]>>4))
}
