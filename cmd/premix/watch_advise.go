package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/kit/access"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

func (a *app) watchAdvise() *cobra.Command {
	var server, tokenFile string
	days := countFlag(7)
	cmd := &cobra.Command{
		Use:   "advise USER",
		Short: "Compare the requests of a user's tasks with their use",
		Long: `Print the memory, cores and GPUs that the tasks of a user asked for and used in the
last days, and the flags with which they would have asked for enough: a text for a mail.
A running premix watch is asked. Only root, its user and holders of its token can do so.

  premix watch advise ada
  premix watch advise ada --days 30 --server http://monitor:8090 --token-file token | mail -s "Your tasks" ada`,
		Args: arguments("USER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.askUsage(cmd, server, tokenFile, args[0], int(days))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			writeUsage(a.stdout, args[0], int(days), r.Usage)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&server, "server", "http://127.0.0.1:8090", "address of premix watch")
	f.StringVar(&tokenFile, "token-file", "", "file with its token")
	f.Var(&days, "days", "days to look at (default 7)")
	return cmd
}

// usageAnswer is the answer of /api/v1/usage.
type usageAnswer struct {
	Start time.Time  `json:"start"`
	End   time.Time  `json:"end"`
	Usage []stepUsed `json:"usage"`
}

// stepUsed is the use of one step of a user.
type stepUsed struct {
	Step        string   `json:"step"`
	Tasks       int      `json:"tasks"`
	Failed      int      `json:"failed"`
	Running     int      `json:"running"`
	CPU         float64  `json:"cpu"`
	Core        float64  `json:"core"`
	Efficiency  float64  `json:"efficiency"`
	Cores       float64  `json:"cores"`
	MemoryAsked int64    `json:"memory_asked"`
	MemoryMost  int64    `json:"memory_most"`
	MemoryP50   int64    `json:"memory_p50"`
	GPUTasks    int      `json:"gpu_tasks"`
	GPUBusy     float64  `json:"gpu_busy"`
	RunMedian   float64  `json:"run_median"`
	WaitMedian  float64  `json:"wait_median"`
	Advice      []string `json:"advice"`
	Enough      struct {
		Cores  float64 `json:"cores"`
		Memory int64   `json:"memory"`
	} `json:"enough"`
}

// askUsage asks a premix watch for the use of a user.
func (a *app) askUsage(cmd *cobra.Command, server, tokenFile, user string, days int) (*usageAnswer, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, &usageError{fmt.Errorf("%q is not an address of premix watch", server), "write it like http://127.0.0.1:8090"}
	}
	token := ""
	if tokenFile != "" {
		if token, err = access.ReadToken(tokenFile); err != nil {
			return nil, secretError(err)
		}
	}
	end := time.Now().UTC()
	q := url.Values{"user": {user}, "engine": {"-process"}, "end": {end.Format(time.RFC3339)}, "start": {end.AddDate(0, 0, -days).Format(time.RFC3339)}}
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, strings.TrimSuffix(server, "/")+"/api/v1/usage?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, exit.Errorf(exit.Origin, "start premix watch, or name another one with --server", "%s: %w", u.Host, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, exit.Errorf(exit.Origin, "", "%s: %w", u.Host, err)
	}
	if resp.StatusCode != http.StatusOK {
		var refused struct{ Error, Hint string }
		if json.Unmarshal(body, &refused) != nil {
			refused.Error = resp.Status
		}
		hint := refused.Hint
		if resp.StatusCode == http.StatusUnauthorized {
			hint = "name the file of its token with --token-file"
		}
		return nil, exit.Errorf(exit.Origin, hint, "%s: %s", u.Host, refused.Error)
	}
	r := &usageAnswer{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, exit.Errorf(exit.Origin, "name its address with --server", "%s: %s", u.Host, "it is not a premix watch")
	}
	return r, nil
}

// flagSize prints a size as flags take it, without a loss: 4G, 1536M.
func flagSize(n int64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "G"}, {20, "M"}, {10, "K"}} {
		if n>>u.shift > 0 && n&(1<<u.shift-1) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprint(n)
}

// writeUsage prints the text for a user.
func writeUsage(w io.Writer, user string, days int, list []stepUsed) {
	var tasks, failed, running int
	var cpu, core float64
	for _, u := range list {
		tasks, failed, running = tasks+u.Tasks, failed+u.Failed, running+u.Running
		cpu, core = cpu+u.CPU, core+u.Core
	}
	plural := func(n int, one string) string {
		if n == 1 {
			return "1 " + one
		}
		return fmt.Sprintf("%d %ss", n, one)
	}
	fmt.Fprintf(w, "Tasks of %s in the last %s: %d ended, %d of them failed, %d running\n", user, plural(days, "day"), tasks, failed, running)
	if tasks == 0 {
		return
	}
	if core > 0 {
		fmt.Fprintf(w, "Processors: %.0f %% of %.1f core hours used\n", 100*cpu/core, core/3600)
	}
	for _, u := range list {
		if u.Tasks == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s, %d failed; median run %s, wait %s\n", cmp.Or(u.Step, "without a step"), plural(u.Tasks, "task"), u.Failed, units.Seconds(u.RunMedian), units.Seconds(u.WaitMedian))
		fmt.Fprintf(w, "  cores   asked for %g, %.0f %% of their time used\n", u.Cores, 100*u.Efficiency)
		switch {
		case u.MemoryMost == 0:
			fmt.Fprintf(w, "  memory  use not known\n")
		case u.MemoryAsked == 0:
			fmt.Fprintf(w, "  memory  no request, used at most %s, in the median %s\n", units.Size(u.MemoryMost), units.Size(u.MemoryP50))
		default:
			fmt.Fprintf(w, "  memory  asked for %s, used at most %s, in the median %s\n", units.Size(u.MemoryAsked), units.Size(u.MemoryMost), units.Size(u.MemoryP50))
		}
		if u.GPUTasks > 0 {
			fmt.Fprintf(w, "  GPUs    had work %.0f %% of the time, in %s\n", 100*u.GPUBusy, plural(u.GPUTasks, "task"))
		}
		for _, advice := range u.Advice {
			fmt.Fprintf(w, "  * %s\n", advice)
		}
		var ours, slurms []string
		if u.Enough.Cores > 0 {
			ours = append(ours, fmt.Sprintf("--task-cores %.0f", u.Enough.Cores))
			slurms = append(slurms, fmt.Sprintf("--cpus-per-task=%.0f", u.Enough.Cores))
		}
		if u.Enough.Memory > 0 {
			ours = append(ours, "--task-memory "+flagSize(u.Enough.Memory))
			slurms = append(slurms, "--mem="+flagSize(u.Enough.Memory))
		}
		if len(ours) > 0 {
			fmt.Fprintf(w, "  premix task: %s\n  sbatch:      %s\n", strings.Join(ours, " "), strings.Join(slurms, " "))
		}
	}
}
