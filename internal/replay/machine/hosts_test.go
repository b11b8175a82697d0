package machine

import (
	"strings"
	"testing"

	"premix/internal/replay/trace"
)

// TestFromNodes: node b1 has been seen with 8 cores; from 00:30 to 00:50 it is free although
// job 4 waits, which also n1 has no room for. Partition big has both nodes, and small only
// one of them.
func TestFromNodes(t *testing.T) {
	const text = `JobID|Partition|User|Submit|Start|End|Elapsed|State|NNodes|NCPUS|AllocTRES|NodeList
1|small|anna|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T01:00:00|01:00:00|COMPLETED|1|4|cpu=4,mem=8G,node=1|n1
2|big|anna|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T00:00:10|00:00:10|COMPLETED|2|4|cpu=4,mem=4G,node=2|b1,n1
3|big|anna|2024-01-01T00:00:20|2024-01-01T00:00:20|2024-01-01T00:30:00|00:29:40|COMPLETED|1|8|cpu=8,mem=8G,node=1|b1
4|big|anna|2024-01-01T00:10:00|2024-01-01T00:50:00|2024-01-01T01:00:00|00:10:00|COMPLETED|1|8|cpu=8,mem=8G,node=1|b1
`
	tr, err := trace.Read(strings.NewReader(text), "test", int64(len(text)), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := FromTrace(tr, 0)
	const want = `pool small cores adjacent: 1x8/8192 1x6/10240
partition small in small: limit 0s, default 0s, tier 0, priority 0, nodes [1]
partition big in small: limit 0s, default 0s, tier 0, priority 0
note cores were free for 3 core hours although jobs waited that they are enough for: no job gets them in these times here
`
	if got := shape(m); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if d := m.Pools[0].Drains; len(d) != 1 || d[0] != (Drain{Node: 0, Cores: 8, Memory: 8192, From: 30 * trace.Minute, Until: 50 * trace.Minute}) {
		t.Errorf("drains %+v", d)
	}
	if m = FromTrace(tr, 12); m.Cores() != 12 || m.Pools[0].Drains != nil {
		t.Errorf("with a number of cores: %s", shape(m))
	}
}
