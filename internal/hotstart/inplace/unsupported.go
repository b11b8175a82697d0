//go:build !amd64

package inplace

import (
	"context"
	"os"

	"premix/internal/hotstart"
	"premix/internal/hotstart/tracer"
)

// Prepare returns an error.
func Prepare(context.Context, string, Call, PrepareOptions) (*Snapshot, error) {
	return nil, passing("%v", tracer.Supported())
}

// Run returns an error.
func Run(*Snapshot, Call) (hotstart.Exit, error) {
	return hotstart.Exit{Code: -1}, tracer.Supported()
}

// RunTraced returns an error.
func RunTraced(Call, func(string, []string) []string) (hotstart.Exit, error) {
	return hotstart.Exit{Code: -1}, tracer.Supported()
}

// End ends this process.
func End(e hotstart.Exit) { os.Exit(e.Code) }
