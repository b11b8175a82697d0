package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"premix/internal/watch"
	"premix/internal/watch/alert"
	"premix/internal/watch/collect"
	"premix/internal/watch/web"
)

// The Grafana dashboard uses only metrics that the program has, and each panel uses some.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../dist/grafana/premix.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil || len(dashboard.Panels) < 8 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	var source strings.Builder
	for _, dir := range []string{"node", "store/server", "blast/service", "watch/web"} {
		err := filepath.WalkDir("../../internal/"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			code, err := os.ReadFile(path)
			source.Write(code)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The source has the full name, the name without premix_, or the name without the prefix of its
	// group of metrics.
	named := func(metric string) bool {
		short := strings.TrimPrefix(metric, "premix_")
		for _, form := range []string{metric, short, strings.TrimPrefix(short, "tree_")} {
			if strings.Contains(source.String(), `"`+form+`"`) {
				return true
			}
		}
		return false
	}
	if named("premix_no_such_total") {
		t.Error("every name is found")
	}
	metric := regexp.MustCompile(`premix_[a-z_]+`)
	for _, p := range dashboard.Panels {
		asked := 0
		for _, target := range p.Targets {
			for _, name := range metric.FindAllString(target.Expr, -1) {
				asked++
				if !named(name) {
					t.Errorf("%s: premix has no metric %s", p.Title, name)
				}
			}
		}
		if asked == 0 {
			t.Errorf("%s asks for no metric", p.Title)
		}
	}
}

// The alerts for Prometheus are about metrics that premix watch has, and Prometheus accepts
// them. The rules for premix itself are correct.
func TestAlertFiles(t *testing.T) {
	const file = "../../dist/prometheus/premix-alerts.yml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"premix_watch_lost_samples_total": true}
	for _, e := range collect.Catalogue {
		name, _ := web.PrometheusName(watch.NewID(e.Name))
		known[name] = true
	}
	asked := 0
	for _, m := range regexp.MustCompile(`(?m)^ +expr: (.*)$`).FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile(`premix_[a-z_]+`).FindAllString(m[1], -1) {
			if asked++; !known[name] {
				t.Errorf("premix watch has no metric %s", name)
			}
		}
	}
	if asked < 15 {
		t.Errorf("%d metrics are asked for", asked)
	}
	rules, err := alert.ReadRules("../../dist/watch/rules.yaml", knownSeries())
	if err != nil || len(rules.Rules) < 10 {
		t.Errorf("the rules for premix: %v", err)
	}
	t.Run("promtool", func(t *testing.T) {
		promtool, err := exec.LookPath("promtool")
		if err != nil {
			t.Skip("promtool is not installed: scripts/setup.sh test installs it")
		}
		for _, args := range [][]string{{"check", "rules", file}, {"test", "rules", "testdata/premix-alerts_test.yml"}} {
			if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
				t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	})
}
