package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
	"premix/internal/kit/regex"
)

// Tcpdump is a capture by tcpdump(8): an alternative to Capture, and a check of it.
type Tcpdump struct {
	o       Options
	cmd     *exec.Cmd
	begin   time.Time
	path    string
	last    chan string // its last line of output
	ownFile bool
}

// OpenTcpdump starts a capture with tcpdump, which is active when OpenTcpdump returns.
// start starts the program; nil: here.
func OpenTcpdump(o Options, start func(*exec.Cmd) error) (*Tcpdump, error) {
	d := &Tcpdump{o: o, path: o.Pcap, last: make(chan string, 1)}
	if d.path == "" {
		f, err := os.CreateTemp("", "premix-*.pcap")
		if err != nil {
			return nil, err
		}
		d.path, d.ownFile = f.Name(), true
		f.Close()
	}
	expression := fmt.Sprintf("host %s and host %s", o.Here.Unmap(), o.Peer.Unmap())
	if o.ExceptPort != 0 {
		expression += fmt.Sprintf(" and not tcp port %d", o.ExceptPort)
	}
	// As root, tcpdump would give up root, and could not write the file.
	d.cmd = exec.Command("tcpdump", "-i", o.Interface, "-nn", "-p", "-s", strconv.Itoa(Snap), "-B", "65536", "-Z", "root",
		"--time-stamp-precision=nano", "-w", d.path, expression)
	if os.Geteuid() != 0 {
		d.cmd.Args = append(d.cmd.Args[:9:9], d.cmd.Args[11:]...)
	}
	d.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	d.cmd.Env = owner.Environ()
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if start == nil {
		start = (*exec.Cmd).Start
	}
	if err := start(d.cmd); err != nil {
		d.remove()
		return nil, err
	}
	lines := bufio.NewScanner(stderr)
	var output []string
	for lines.Scan() {
		output = append(output, lines.Text())
		if strings.Contains(lines.Text(), "listening on") {
			d.begin = time.Now()
			go func() {
				var rest []string
				for lines.Scan() {
					rest = append(rest, lines.Text())
				}
				d.last <- strings.Join(rest, "\n")
			}()
			return d, nil
		}
	}
	err = d.cmd.Wait()
	d.remove()
	err = fmt.Errorf("tcpdump: %s: %w", strings.Join(output, "; "), err)
	if os.Geteuid() != 0 {
		return nil, cannotCapture(err)
	}
	return nil, err
}

// Begin returns the time from which tcpdump was capturing.
func (d *Tcpdump) Begin() time.Time { return d.begin }

func (d *Tcpdump) remove() {
	if d.ownFile {
		_ = os.Remove(d.path) // it is temporary
	}
}

// tcpdumpRetire is the time for which the kernel holds packets back from tcpdump when few
// come. Packets still held when tcpdump is asked to end are lost, and not counted as
// dropped.
const tcpdumpRetire = time.Second

var droppedForm = regex.Lazy(`(\d+) packets? dropped by kernel`)

// Stop implements [Source].
func (d *Tcpdump) Stop() (*Totals, error) {
	time.Sleep(Drain + tcpdumpRetire)
	defer d.remove()
	if err := d.cmd.Process.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, err
	}
	last := <-d.last
	if err := d.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("tcpdump: %s: %w", last, err)
	}
	t := NewTally(d.o, d.begin)
	if err := ReadPcap(d.path, t); err != nil {
		return nil, err
	}
	m := droppedForm().FindStringSubmatch(last)
	if m == nil {
		return nil, fmt.Errorf("tcpdump printed no number of dropped packets: %q", last)
	}
	t.t.Drops, _ = strconv.ParseInt(m[1], 10, 64) // the pattern permits only digits
	return t.Totals(), nil
}

// ReadPcap adds the frames of a pcap file of Ethernet to a Tally.
func ReadPcap(path string, t *Tally) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	h := make([]byte, pcapHeader)
	if _, err := io.ReadFull(in, h); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var order binary.ByteOrder
	unit := time.Nanosecond
	for _, o := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch o.Uint32(h) {
		case pcapMagic:
			order = o
		case pcapMicro:
			order, unit = o, time.Microsecond
		}
	}
	if order == nil || order.Uint32(h[20:])&0xffff != linkEthernet {
		return fmt.Errorf("%s is not a pcap file of Ethernet", path)
	}
	buf := make([]byte, 1<<16)
	for {
		if _, err := io.ReadFull(in, h[:pcapPacket]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		n := order.Uint32(h[8:])
		if int(n) > len(buf) {
			return fmt.Errorf("%s: a packet of %d bytes", path, n)
		}
		if _, err := io.ReadFull(in, buf[:n]); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		at := time.Unix(int64(order.Uint32(h)), int64(order.Uint32(h[4:]))*int64(unit))
		t.Add(at, buf[:n], int(order.Uint32(h[12:])))
	}
}
