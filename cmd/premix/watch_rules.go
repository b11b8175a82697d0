package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/watch/alert"
	"premix/internal/watch/collect"
)

func (a *app) watchRules() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Check files of alert rules",
		Args:  arguments(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.watchRulesCheck())
	return cmd
}

// knownSeries returns the units of the series of all collectors.
func knownSeries() alert.Units {
	known := make(alert.Units)
	for _, e := range collect.Catalogue {
		known[e.Name] = e.Unit
	}
	return known
}

// checkedRules is the JSON form of a file of rules.
type checkedRules struct {
	Rules []checkedRule `json:"rules"`
	Every float64       `json:"every_seconds"`
}

type checkedRule struct {
	Name string   `json:"name"`
	Rule string   `json:"rule"`
	To   []string `json:"to"` // receivers; none: the dashboard only
}

func (a *app) watchRulesCheck() *cobra.Command {
	var send bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a file of alert rules",
		Long: `Check a file for premix watch --rules, and print its rules. All mistakes are reported,
each with its line. With --send every receiver gets a message with a test alert.

  premix watch rules check rules.yaml
  premix watch rules check rules.yaml --send`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := alert.ReadRules(args[0], knownSeries())
			if err != nil {
				return err
			}
			if a.json {
				checked := checkedRules{Rules: []checkedRule{}, Every: rules.Every.Seconds()}
				for _, r := range rules.Rules {
					checked.Rules = append(checked.Rules, checkedRule{r.Name, r.String(), append([]string{}, r.To...)})
				}
				if err := a.printJSON(checked); err != nil || !send {
					return err
				}
				return a.sendTest(cmd, rules)
			}
			for _, r := range rules.Rules {
				to := "the dashboard only"
				if len(r.To) > 0 {
					to = strings.Join(r.To, ", ")
				}
				fmt.Fprintf(a.stdout, "%s: %s -> %s\n", r.Name, r, to)
			}
			fmt.Fprintf(a.stdout, "rules: %d, receivers: %d, evaluated every %s\n", len(rules.Rules), len(rules.Receivers), units.Seconds(rules.Every.Seconds()))
			if !send {
				return nil
			}
			return a.sendTest(cmd, rules)
		},
	}
	cmd.Flags().BoolVar(&send, "send", false, "also send a test alert to every receiver")
	return cmd
}

// sendTest sends a message with a test alert to every receiver.
func (a *app) sendTest(cmd *cobra.Command, rules *alert.Rules) error {
	node, err := os.Hostname()
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range rules.Receivers {
		now := time.Now()
		m := &alert.Message{ID: fmt.Sprintf("test-%d", now.UnixNano()), Node: node, Time: now, Receiver: r.Name, Alerts: []*alert.Alert{{
			ID: "0", Rule: "test", Severity: "info", Name: "test", Series: "test", Labels: map[string]string{"node": node}, State: alert.Resolved,
			Since: now, Fired: now, Ended: now, Text: "this message shows that alerts arrive"}}}
		if err := new(alert.Sender).Send(cmd.Context(), r, m); err != nil {
			failed = append(failed, exit.Errorf(exit.Origin, "check the address, the token or password, and that the receiver is running", "receiver %s: %w", r.Name, err))
			continue
		}
		if !a.json {
			fmt.Fprintf(a.stdout, "%s: accepted the test alert\n", r.Name)
		}
	}
	return errors.Join(failed...)
}
