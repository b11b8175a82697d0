package hotstart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == StageArg {
		os.Exit(StageMain())
	}
	os.Exit(m.Run())
}

func TestTry(t *testing.T) {
	for _, kind := range []Kind{Cold, Fork, Hot, Copy} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			os.Chmod(dir, 0755)
			spec := Spec{Name: "bwa", Argv: []string{"bwa", "mem", "-t", "1", "/tmp/w/ref/genome.fa", "r1", "r2"}, Env: []string{"PATH=/usr/bin:/bin"},
				Inputs: []string{"r1", "r2"}, Data: []string{"/tmp/w/ref"}, Recipe: "x"}
			s, err := New(spec, Options{Store: filepath.Join(dir, "store"), Start: kind, Tasks: 4, Log: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			scratch := filepath.Join(dir, "scratch")
			os.Mkdir(scratch, 0700)
			b := time.Now()
			err = s.Prepare(context.Background(), map[string]string{"r1": "/tmp/w/a_1.fq", "r2": "/tmp/w/a_2.fq"}, scratch)
			t.Log("prepare", time.Since(b), err)
			k, why := s.Decision()
			t.Log(k, why)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < 3; i++ {
				td := filepath.Join(dir, "tasks", fmt.Sprint(i))
				os.MkdirAll(td, 0755)
				b := time.Now()
				p, err := s.Start(context.Background(), Task{Dir: td, Inputs: map[string]string{"r1": "/tmp/w/b_1.fq.gz", "r2": "/tmp/w/b_2.fq.gz"}})
				if err != nil {
					t.Fatal(err)
				}
				e, err := p.Wait()
				st, _ := os.Stat(filepath.Join(td, StdoutName))
				t.Log(p.Kind, p.Latency, time.Since(b), e, err, st.Size(), lastWords(td))
				if err := s.Close; err == nil {
					t.Fatal()
				}
			}
		})
	}
}
