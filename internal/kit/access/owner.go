package access

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Each user of a machine can connect to its loopback addresses. The kernel knows the user
// at the other end of the connection: /proc/net/tcp has the user of every socket, see
// proc_net_tcp.rst in the kernel's documentation.

// ownerKey is the key of a connection's *peer in a context.
type ownerKey struct{}

// peer is the other end of a connection.
type peer struct {
	conn net.Conn
	once sync.Once
	own  bool
}

// ConnContext adds a connection to a context for [Own]. Use it as the ConnContext of an
// http.Server.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, ownerKey{}, &peer{conn: c})
}

// Own reports whether the request with this context came through a loopback connection
// from a process of root or of this user. It returns false where that is not known.
func Own(ctx context.Context) bool {
	p, ok := ctx.Value(ownerKey{}).(*peer)
	if !ok {
		return false
	}
	p.once.Do(func() {
		here, _ := p.conn.LocalAddr().(*net.TCPAddr)
		there, _ := p.conn.RemoteAddr().(*net.TCPAddr)
		if here == nil || there == nil || !here.IP.IsLoopback() || !there.IP.IsLoopback() {
			return
		}
		user, err := userOf(there.AddrPort(), here.AddrPort())
		p.own = err == nil && (user == 0 || user == os.Geteuid())
	})
	return p.own
}

var errNoSocket = errors.New("there is no such socket")

// userOf returns the user of the TCP socket on this machine with a local and a remote
// address.
func userOf(local, remote netip.AddrPort) (int, error) {
	for _, table := range []struct {
		file string
		form func(netip.AddrPort) string
	}{{"/proc/self/net/tcp", form4}, {"/proc/self/net/tcp6", form6}} {
		user, err := lookUp(table.file, table.form(local), table.form(remote))
		if err == nil || !errors.Is(err, errNoSocket) && !errors.Is(err, fs.ErrNotExist) {
			return user, err
		}
	}
	return -1, errNoSocket
}

// lookUp finds the user of a socket in a table. The kernel shows user 0 and inode 0 for a
// socket that its process has closed: the user is not known then.
func lookUp(file, local, remote string) (int, error) {
	if local == "" || remote == "" {
		return -1, errNoSocket
	}
	f, err := os.Open(file)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for in.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		fields := strings.Fields(in.Text())
		if len(fields) < 10 || fields[1] != local || fields[2] != remote {
			continue
		}
		user, err := strconv.Atoi(fields[7])
		if err != nil || fields[9] == "0" {
			return -1, fmt.Errorf("the user of %s is not known", local)
		}
		return user, nil
	}
	return -1, errors.Join(in.Err(), errNoSocket)
}

// form4 returns an address as /proc/net/tcp writes it, "" for an IPv6 address.
func form4(a netip.AddrPort) string {
	ip := a.Addr().Unmap()
	if !ip.Is4() {
		return ""
	}
	b := ip.As4()
	return hexWords(b[:]) + fmt.Sprintf(":%04X", a.Port())
}

// form6 returns an address as /proc/net/tcp6 writes it. An IPv4 address is there too, as
// the peer of an IPv6 socket.
func form6(a netip.AddrPort) string {
	b := a.Addr().As16()
	return hexWords(b[:]) + fmt.Sprintf(":%04X", a.Port())
}

// hexWords writes 32-bit words in network byte order as hexadecimal numbers of this
// machine, which is little-endian.
func hexWords(b []byte) string {
	var text strings.Builder
	for i := 0; i < len(b); i += 4 {
		text.WriteString(hex.EncodeToString([]byte{b[i+3], b[i+2], b[i+1], b[i]}))
	}
	return strings.ToUpper(text.String())
}
