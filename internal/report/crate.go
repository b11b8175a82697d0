package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/hotstart"
	"premix/internal/kit/beneath"
	"premix/internal/kit/outputs"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// CrateFile is the name of the description in a run directory that makes it an RO-Crate.
const CrateFile = "ro-crate-metadata.json"

// Profiles of the description: https://www.researchobject.org/ro-crate/specification/1.1 and
// https://www.researchobject.org/workflow-run-crate/profiles/process_run_crate.
const (
	crateProfile   = "https://w3id.org/ro/crate/1.1"
	processProfile = "https://w3id.org/ro/wfrun/process/0.5"
	crateTerms     = "https://w3id.org/ro/terms/workflow-run#"
)

// crateTime is the form of times, as the profile of process runs wants them.
const crateTime = "2006-01-02T15:04:05.000-07:00"

// entity is an object of the description.
type entity map[string]any

// ref is a reference to an entity.
type ref struct {
	ID string `json:"@id"`
}

// propertyValue returns the value of a property: a list, or its only element.
func propertyValue(list []ref) any {
	if len(list) == 1 {
		return list[0]
	}
	return list
}

// crate is a description that is being made.
type crate struct {
	dir   string // absolute
	graph []entity
	known map[string]ref // files and directories outside the run directory, by path
	begun time.Time      // start of the first task
}

// WriteCrate writes dir/ro-crate-metadata.json, which describes the run with a recipe in dir
// as a Process Run Crate: the tool, the data and inputs with their SHA-256, the command, and
// an action for each task that has a record. It reads all of these files. A file that has
// changed since the run used it has no digest, and a description that says so.
func WriteCrate(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if queue.IsDir(dir) {
		return &engine.DirError{Dir: dir, Reason: "has tasks without a recipe, which do not name their inputs and outputs", HintText: "leave out --ro-crate, or run the commands with premix run"}
	}
	plan, err := readPlan(dir)
	if err != nil {
		return err
	}
	last := map[int]*record.Task{}
	c := &crate{dir: abs, known: map[string]ref{}, begun: time.Now()}
	for rec, err := range queue.Records(dir) {
		if err != nil {
			return err
		}
		if rec.Task < 1 || rec.Task > len(plan.Tasks) {
			continue
		}
		last[rec.Task] = rec
		if rec.Start != "" && rec.Started.Before(c.begun) {
			c.begun = rec.Started
		}
	}
	if err := c.describe(plan, last); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{
		"@context": []any{crateProfile + "/context", map[string]string{
			"sha256": crateTerms + "sha256", "environment": crateTerms + "environment",
		}},
		"@graph": c.graph,
	}, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(abs, CrateFile)
	if err := owner.CheckPlanted(path); err != nil {
		return err
	}
	return beneath.Replace(path, 0o666, beneath.Volatile, append(text, '\n'))
}

// describe makes all entities.
func (c *crate) describe(plan *engine.Plan, last map[int]*record.Task) error {
	h := &plan.Header
	root := entity{"@id": "./", "@type": "Dataset", "name": "Run of " + h.Recipe,
		"description": fmt.Sprintf("Outputs of %q over %d samples, run by premix", h.Recipe, len(plan.Tasks)),
		"conformsTo":  ref{processProfile}, "license": ref{"#license"}}
	c.graph = append(c.graph,
		entity{"@id": CrateFile, "@type": "CreativeWork", "conformsTo": ref{crateProfile}, "about": ref{"./"}, "description": outputs.CrateMark},
		root,
		entity{"@id": processProfile, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
		entity{"@id": "#license", "@type": "CreativeWork", "name": "No license is stated", "description": "The owner of the run has not stated a license for its outputs."},
		entity{"@id": "#premix", "@type": "SoftwareApplication", "name": "premix", "softwareVersion": h.Premix, "description": "started the tool for each sample"})
	person := c.person()
	tool, err := c.tool(h)
	if err != nil {
		return err
	}
	about := []ref{}
	for _, path := range []string{h.RecipeFile, h.SheetFile} {
		r, err := c.outside(path)
		if err != nil {
			return err
		}
		about = append(about, r)
	}
	shared := []ref{}
	for _, name := range slices.Sorted(maps.Keys(h.Frozen.Data)) {
		r, err := c.outside(h.Frozen.Data[name])
		if err != nil {
			return err
		}
		shared = append(shared, r)
	}
	environment := c.environment(h.Frozen.Env)
	ended := h.Created // of the last task
	var parts, actions []ref
	for i := range plan.Tasks {
		rec := last[i+1]
		if rec == nil {
			continue
		}
		if rec.Finished.After(ended) {
			ended = rec.Finished
		}
		objects := slices.Clone(shared)
		for _, name := range slices.Sorted(maps.Keys(plan.Tasks[i].Inputs)) {
			r, err := c.outside(plan.Tasks[i].Inputs[name])
			if err != nil {
				return err
			}
			objects = append(objects, r)
		}
		results, err := c.results(rec)
		if err != nil {
			return err
		}
		parts = append(parts, results...)
		a := c.action(h, &plan.Tasks[i], rec)
		a["instrument"], a["object"], a["agent"] = tool, propertyValue(objects), person
		if len(results) > 0 {
			a["result"] = propertyValue(results)
		}
		if len(environment) > 0 {
			a["environment"] = propertyValue(environment)
		}
		c.graph = append(c.graph, a)
		actions = append(actions, ref{a["@id"].(string)})
	}
	root["datePublished"] = ended.UTC().Format(time.RFC3339)
	root["hasPart"] = propertyValue(append(c.outsiders(), parts...))
	root["mentions"] = append(actions, ref{"#premix"})
	root["about"], root["author"] = about, person
	return nil
}

// outsiders returns the files and directories outside the run directory.
func (c *crate) outsiders() []ref {
	list := []ref{}
	for _, path := range slices.Sorted(maps.Keys(c.known)) {
		list = append(list, c.known[path])
	}
	return list
}

// action returns the action of a task.
func (c *crate) action(h *engine.Header, t *engine.Task, rec *record.Task) entity {
	argv := slices.Clone(h.Frozen.Argv)
	for i := range argv {
		argv[i] = queue.Quote(strings.ReplaceAll(argv[i], hotstart.SampleMark, t.Sample))
	}
	command := strings.Join(argv, " ")
	if t.Pipe != "" {
		command += " | " + t.Pipe
	}
	sum := sha256.Sum256([]byte(command))
	a := entity{"@id": "#task-" + strconv.Itoa(rec.Task), "@type": "CreateAction", "name": h.Recipe + " of " + t.Sample, "description": command,
		"identifier": "sha256:" + hex.EncodeToString(sum[:]), "endTime": rec.Finished.UTC().Format(crateTime), "actionStatus": "http://schema.org/CompletedActionStatus"}
	if rec.Start != "" {
		a["startTime"] = rec.Started.UTC().Format(crateTime)
		a["disambiguatingDescription"] = "started " + rec.Start + ": " + rec.Reason
	}
	if !rec.OK() {
		a["actionStatus"], a["error"] = "http://schema.org/FailedActionStatus", rec.Error
	}
	return a
}

// person adds the owner of the run directory.
func (c *crate) person() ref {
	r := ref{"#agent"}
	name := "unknown"
	if info, err := os.Stat(c.dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			name = "user " + strconv.Itoa(int(st.Uid))
			if u, err := user.LookupId(strconv.Itoa(int(st.Uid))); err == nil {
				name = u.Username
			}
		}
	}
	c.graph = append(c.graph, entity{"@id": r.ID, "@type": "Person", "name": name, "description": "owner of the run directory"})
	return r
}

// environment adds the variables of the recipe.
func (c *crate) environment(env map[string]string) []ref {
	var list []ref
	for i, name := range slices.Sorted(maps.Keys(env)) {
		r := ref{"#variable-" + strconv.Itoa(i+1)}
		c.graph = append(c.graph, entity{"@id": r.ID, "@type": "PropertyValue", "name": name, "value": env[name]})
		list = append(list, r)
	}
	return list
}

// tool adds the tool. The tool of an image is described by the digest of the image.
func (c *crate) tool(h *engine.Header) (ref, error) {
	name := filepath.Base(h.Frozen.Tool)
	if h.Frozen.Image != "" {
		c.graph = append(c.graph, entity{"@id": "#tool", "@type": "SoftwareApplication", "name": name, "softwareVersion": h.Frozen.Image, "description": h.Frozen.Tool + " of the image " + h.Frozen.Image})
		return ref{"#tool"}, nil
	}
	r, err := c.outside(h.Frozen.Tool)
	if err != nil {
		return r, err
	}
	for _, e := range c.graph {
		if e["@id"] != r.ID {
			continue
		}
		e["@type"] = "SoftwareApplication"
		if e["sha256"] != nil { // a version that every tool has
			e["@type"], e["softwareVersion"] = []string{"File", "SoftwareApplication"}, fmt.Sprint("sha256:", e["sha256"])
		}
	}
	return r, nil
}

// results adds the outputs of a task. A task that failed leaves none.
func (c *crate) results(rec *record.Task) ([]ref, error) {
	var list []ref
	if !rec.OK() {
		return nil, nil
	}
	for _, path := range rec.Outputs {
		// The tool has written them before it ended.
		r, err := c.add(filepath.Join(c.dir, path), filepath.Base(path), address("", path), rec.Finished, false)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// outside adds a file, or a directory with all files in it, outside the run directory.
func (c *crate) outside(path string) (ref, error) {
	if r, ok := c.known[path]; ok {
		return r, nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	r, err := c.add(real, filepath.Base(path), address("file", path), c.begun, true)
	c.known[path] = r
	return r, err
}

// add adds the file or directory path as id, under a name for people. A file that has changed after until has no
// digest. strict counts changes of its name and mode, too, which changes of its content
// with a time set back cause.
func (c *crate) add(path, name, id string, until time.Time, strict bool) (ref, error) {
	e := entity{"@id": id, "@type": "File", "name": name}
	c.graph = append(c.graph, e)
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		e["description"] = "not there any more: there is no digest"
		return ref{id}, nil
	case info.IsDir():
		e["@id"], e["@type"] = id+"/", "Dataset"
		return ref{id + "/"}, c.directory(e, path, until, strict)
	}
	e["contentSize"] = strconv.FormatInt(info.Size(), 10)
	e["dateModified"] = info.ModTime().UTC().Format(crateTime)
	f, err := owner.OpenOthers(path)
	if err != nil {
		e["description"] = "cannot be read: there is no digest"
		return ref{id}, nil
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ref{id}, fmt.Errorf("read %s: %w", path, err)
	}
	// It may have changed before, or while it was read.
	if info, err = f.Stat(); err != nil {
		return ref{id}, err
	}
	if changed(info, until, strict) {
		e["description"] = "changed after the run used it: there is no digest"
		return ref{id}, nil
	}
	e["sha256"] = hex.EncodeToString(sum.Sum(nil))
	return ref{id}, nil
}

// directory adds the files below a directory, and refers to them in its entity.
func (c *crate) directory(e entity, path string, until time.Time, strict bool) error {
	parts := []ref{}
	err := filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(path, name)
		if err != nil {
			return err
		}
		r, err := c.add(name, d.Name(), e["@id"].(string)+(&url.URL{Path: rel}).EscapedPath(), until, strict)
		parts = append(parts, r)
		return err
	})
	e["hasPart"] = propertyValue(parts)
	return err
}

// changed reports whether a file has changed after a moment. Times of files are those of the
// last tick of the clock, and so never later than the change.
func changed(info fs.FileInfo, until time.Time, strict bool) bool {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && strict && time.Unix(st.Ctim.Unix()).After(until) {
		return true
	}
	return info.ModTime().After(until)
}

// address returns the address of a path: of a file of the machine, or relative to the run
// directory.
func address(scheme, path string) string {
	return (&url.URL{Scheme: scheme, Path: filepath.ToSlash(path)}).String()
}
