package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

// detail prints a line of --verbose to standard error.
func (a *app) detail(format string, args ...any) {
	if !a.verbose {
		return
	}
	text := fmt.Sprintf(format, args...)
	if a.json {
		// A string always has a JSON form; a closed stderr has no reader.
		_ = json.NewEncoder(a.stderr).Encode(map[string]string{"detail": text})
		return
	}
	fmt.Fprintf(a.stderr, "detail: %s\n", text)
}

// before checks a command line before its command starts, and prints its details.
func (a *app) before(cmd *cobra.Command) error {
	if a.verbose && a.quiet {
		return &usageError{errors.New("--quiet and --verbose exclude each other"), "leave out one of them"}
	}
	a.describe(cmd)
	return ownHome(cmd)
}

// describe prints the version, the command, and its settings from flags and the environment.
func (a *app) describe(cmd *cobra.Command) {
	if !a.verbose {
		return
	}
	a.detail("%s, version %s", cmd.CommandPath(), version)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if value := f.Value.String(); value != "" && f.Name != "verbose" {
			a.detail("--%s is %s", f.Name, value)
		}
	})
	settings := slices.DeleteFunc(os.Environ(), func(s string) bool { return !strings.HasPrefix(s, "PREMIX_") })
	slices.Sort(settings)
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		a.detail("$%s is %s", name, value)
	}
}

// ended prints the time that a command took and its exit code.
func (a *app) ended(began time.Time, code exit.Code) {
	a.detail("ended after %s with exit code %d", units.Seconds(time.Since(began).Seconds()), code)
}
