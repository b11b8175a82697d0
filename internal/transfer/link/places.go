package link

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/regex"
	"premix/internal/transfer"
)

// placeNames are the names of the variables that every script has.
var placeNames = []string{"host", "host_address", "port", "user", "peer", "ssh", "scp", "identity", "known_hosts",
	"local", "local_directory", "local_name", "remote", "remote_directory", "remote_inside", "remote_name", "remote_quoted",
	"temp", "remote_temp", "src", "dst", "premix", "have", "silence"}

var placeForm = regex.Lazy(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Places are the values of a script's variables.
type Places struct {
	Local, Remote string // paths of the source and the copy, absolute
	// RemoteRoot is the directory that servers serve; remote_inside is Remote relative to
	// it. Empty: the directory that contains Remote.
	RemoteRoot       string
	Temp, RemoteTemp string // directories for the protocol's own use
	Address          string // of the peer
	Premix           string // path of this program
	Have             string // path at the receiver that may contain much of the data; empty: none
	Put              bool
}

// Variables returns lines of sh that set a protocol's variables.
func (l *Link) Variables(p *Protocol, at Places) string {
	if at.RemoteRoot == "" {
		at.RemoteRoot = path.Dir(at.Remote)
	}
	inside := strings.TrimPrefix(strings.TrimPrefix(at.Remote, at.RemoteRoot), "/")
	v := map[string]string{
		"host": l.Host, "host_address": bracket(at.Address), "port": strconv.Itoa(l.Port), "user": l.User, "peer": l.Peer(),
		"ssh": strings.Join(l.SSH(), " "), "scp": strings.Join(l.options("-P"), " "),
		"identity": l.Identity, "known_hosts": l.KnownHosts,
		"local": at.Local, "local_directory": filepath.Dir(at.Local), "local_name": filepath.Base(at.Local),
		"remote": at.Remote, "remote_directory": at.RemoteRoot, "remote_inside": inside, "remote_name": path.Base(at.Remote),
		"remote_quoted": Quote(at.Remote),
		"temp":          at.Temp, "remote_temp": at.RemoteTemp, "premix": at.Premix, "have": at.Have,
		"silence": strconv.Itoa(max(1, int(transfer.Silence()/time.Second))),
		"src":     at.Remote, "dst": at.Local,
	}
	if at.Put {
		v["src"], v["dst"] = at.Local, at.Remote
	}
	maps.Copy(v, p.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(v)) {
		fmt.Fprintf(&b, "%s=%s\n", name, Quote(v[name]))
	}
	return b.String()
}

// Peer returns USER@HOST, or HOST if ssh is to choose the user.
func (l *Link) Peer() string {
	if l.User == "" {
		return l.Host
	}
	return l.User + "@" + l.Host
}

// SSH returns the command that connects to the peer, without the peer's name.
func (l *Link) SSH() []string { return append([]string{"ssh", "-T"}, l.options("-p")...) }

// connectTime is the time limit for a connection, in seconds.
const connectTime = 15

// options returns the options that ssh, scp and sftp have in common; port is the name of
// the option that differs.
func (l *Link) options(port string) []string {
	// ssh must not ask questions: there is no user to answer.
	o := []string{"-o", "BatchMode=yes", "-o", "ConnectTimeout=" + strconv.Itoa(connectTime),
		// ssh ends after four of these intervals without an answer.
		"-o", "ServerAliveInterval=" + strconv.Itoa(max(1, int(transfer.Silence()/time.Second/4))), "-o", "ServerAliveCountMax=3"}
	if l.Control != "" {
		o = append(o, "-o", "ControlPath="+l.Control)
	}
	if l.Port != 0 && l.Port != 22 {
		o = append(o, port, strconv.Itoa(l.Port))
	}
	if l.Identity != "" {
		o = append(o, "-i", l.Identity, "-o", "IdentitiesOnly=yes")
	}
	if l.KnownHosts != "" {
		o = append(o, "-o", "UserKnownHostsFile="+l.KnownHosts, "-o", "StrictHostKeyChecking=yes")
	}
	return o
}

// bracket returns an address as URLs need it.
func bracket(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// Quote returns a text as one word of sh.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
