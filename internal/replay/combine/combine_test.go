package combine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"premix/internal/replay/machine"
	"premix/internal/replay/scheduling"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// job is a job of a test. Times are in seconds.
type job struct {
	submit, run, cores, user int
	after                    int // number of a job, or 0
}

func read(t *testing.T, jobs ...job) *trace.Trace {
	t.Helper()
	var b strings.Builder
	for i, j := range jobs {
		after, think := j.after, 0
		if after == 0 {
			after, think = -1, -1
		}
		fmt.Fprintf(&b, "%d %d -1 %d %d -1 -1 -1 %d -1 1 %d 1 -1 1 1 %d %d\n", i+1, j.submit, j.run, j.cores, 2*j.run, j.user, after, think)
	}
	tr, err := trace.Read(strings.NewReader(b.String()), "test", int64(b.Len()), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Len() != len(jobs) {
		t.Fatalf("%d jobs of %d: %+v", tr.Len(), len(jobs), tr.Read)
	}
	return tr
}

// packs lists the jobs of each pack by their indices in the trace.
func (p *Packed) packs() (list [][]int32) {
	for i := range len(p.at) - 1 {
		list = append(list, p.members[p.at[i]:p.at[i+1]])
	}
	return list
}

func TestPack(t *testing.T) {
	tests := []struct {
		name   string
		jobs   []job
		target trace.Time
		want   [][]int32
	}{
		{"three of ten seconds fill thirty", []job{{0, 10, 1, 1, 0}, {1, 10, 1, 1, 0}, {2, 10, 1, 1, 0}, {3, 10, 1, 1, 0}}, 30 * trace.Second, [][]int32{{0, 1, 2}, {3}}},
		{"users are apart", []job{{0, 10, 1, 1, 0}, {1, 10, 1, 2, 0}, {2, 10, 1, 1, 0}, {3, 10, 1, 2, 0}}, trace.Minute, [][]int32{{0, 2}, {1, 3}}},
		{"sizes are apart", []job{{0, 10, 1, 1, 0}, {1, 10, 2, 1, 0}, {2, 10, 1, 1, 0}}, trace.Minute, [][]int32{{1}, {0, 2}}},
		{"nobody waits long for company", []job{{0, 10, 1, 1, 0}, {61, 10, 1, 1, 0}, {62, 10, 1, 1, 0}}, trace.Hour, [][]int32{{0}, {1, 2}}},
		{"long jobs stay alone", []job{{0, 40, 1, 1, 0}, {1, 40, 1, 1, 0}}, trace.Minute, [][]int32{{0}, {1}}},
		{"who waits or is waited for stays alone", []job{{0, 10, 1, 1, 0}, {1, 10, 1, 1, 1}, {2, 10, 1, 1, 0}, {3, 10, 1, 1, 0}}, trace.Minute, [][]int32{{0}, {1}, {2, 3}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := read(t, tt.jobs...)
			p := Pack(tr, tt.target)
			got := p.packs()
			if !slices.EqualFunc(got, tt.want, slices.Equal) {
				t.Fatalf("packs %v, want %v", got, tt.want)
			}
			for i, jobs := range got {
				var run, asked trace.Time
				for _, j := range jobs {
					run += tr.Run[j]
					asked += tr.Asked[j]
				}
				last := jobs[len(jobs)-1]
				if p.Trace.Run[i] != run || p.Trace.Asked[i] != asked || p.Trace.Submit[i] != tr.Submit[last] || p.Trace.Cores[i] != tr.Cores[last] {
					t.Errorf("pack %d runs %v, asks for %v, comes at %v", i, p.Trace.Run[i], p.Trace.Asked[i], p.Trace.Submit[i])
				}
			}
		})
	}
}

// The jobs of a pack run one after the other, after the overhead of the pack's start. Packing
// and unpacking neither loses nor adds time.
func TestUnpack(t *testing.T) {
	tr := read(t, job{0, 10, 1, 1, 0}, job{1, 20, 1, 1, 0}, job{2, 40, 1, 2, 0}, job{3, 30, 1, 1, 3})
	p := Pack(tr, trace.Minute)
	if len(p.packs()) != 3 {
		t.Fatalf("packs are %v", p.packs())
	}
	m, err := machine.Parse([]byte("overhead: 5s\npools: [{nodes: [{cores: 1}], place: any}]"))
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := scheduling.Choose([]string{"fcfs"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := simulate.Run(context.Background(), p.Trace, m, scheduling.New(chosen[0]), simulate.Options{Estimates: simulate.Exact})
	if err != nil {
		t.Fatal(err)
	}
	out := p.Unpack(s, trace.Time(m.Overhead))
	second := trace.Second
	// The pack of jobs 1 and 2 arrives at 1 s, and job 3 after it. Job 4 waits for job 3.
	for i, want := range []struct{ start, end trace.Time }{{6, 16}, {16, 36}, {36, 81}, {81, 116}} {
		if out.Start[i] != want.start*second || out.End[i] != want.end*second {
			t.Errorf("job %d: from %g to %g s, want %d to %d", i+1, out.Start[i].Seconds(), out.End[i].Seconds(), want.start, want.end)
		}
	}
	if out.Eligible[0] != 0 || out.Eligible[3] != 81*second {
		t.Errorf("eligible at %v", out.Eligible)
	}
}
