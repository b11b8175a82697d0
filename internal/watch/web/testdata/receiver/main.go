// Receiver is Prometheus as far as remote write goes: its own handler of
// the protocol before its own storage. It prints the address that it listens on, takes
// what it is sent until its standard input ends, and prints every sample that it has, as
//
//	{"labels":{"__name__":"...",...},"time":MS,"value":NUMBER}
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

func main() {
	if err := receive(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func receive(dir string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	db, err := tsdb.Open(dir, log, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	handler := remote.NewWriteHandler(log, prometheus.NewRegistry(), db, remoteapi.MessageTypes{remoteapi.WriteV1MessageType}, false, false, false)
	go http.Serve(listener, handler) // until the process ends
	fmt.Println(listener.Addr())
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	q, err := db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		return err
	}
	defer q.Close()
	all := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+"))
	out := json.NewEncoder(os.Stdout)
	for all.Next() {
		series := all.At()
		for it := series.Iterator(nil); it.Next() == chunkenc.ValFloat; {
			t, v := it.At()
			if err := out.Encode(map[string]any{"labels": series.Labels().Map(), "time": t, "value": v}); err != nil {
				return err
			}
		}
	}
	return all.Err()
}
