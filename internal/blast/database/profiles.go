package database

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Profiles is the kind of a database of profiles, as makeprofiledb names it.
type Profiles string

const (
	RPS   Profiles = "rps"   // for rpsblast and rpstblastn
	Delta Profiles = "delta" // for -rpsdb of deltablast
)

// profileEndings are the endings of the files that belong to a volume of profiles, besides the
// files of its sequences.
var profileEndings = []string{"aux", "freq", "loo", "obsr", "rps", "wcounts"}

// profiles makes a database of profiles. The source lists files with scoremats in text form,
// separated by blanks or line breaks, such as psiblast writes with -out_pssm.
//
// The volumes are one fragment: BLAST+ writes no archives of searches in profiles.
func (b *builder) profiles(ctx context.Context, path string) error {
	o := b.o
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	names := strings.Fields(string(text))
	if len(names) == 0 {
		return &Error{Kind: Use, Message: path + " lists no profiles", HintText: "write the name of a file with a scoremat on each line"}
	}
	var newest time.Time
	for _, name := range names {
		st, err := os.Stat(name)
		if err != nil || !st.Mode().IsRegular() {
			return &Error{Kind: Use, Message: fmt.Sprintf("%s lists %q, which is not a file", path, name), HintText: "names are relative to the working directory", Err: err}
		}
		if st.ModTime().After(newest) {
			newest = st.ModTime()
		}
		abs, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		if strings.ContainsAny(abs, " \t\n") {
			return &Error{Kind: Use, Message: fmt.Sprintf("the path %q has a blank, at which makeprofiledb would split it", abs), HintText: "copy the profiles to another directory"}
		}
		fmt.Fprintln(&list, abs)
	}
	listed := filepath.Join(b.scratch, "list")
	if err := os.WriteFile(listed, list.Bytes(), 0o600); err != nil {
		return err
	}
	o.Progress.Fragments.Store(1)
	if o.Title == "" {
		o.Title = path
	}
	base := o.Name + ".000"
	said, err := b.tool(ctx, nil, "makeprofiledb", "-in", listed, "-out", base, "-title", o.Title, "-dbtype", string(o.Profiles),
		"-blastdb_version", strconv.Itoa(o.Version), "-logfile", filepath.Join(b.scratch, "log"))
	if err != nil {
		return toolError("makeprofiledb", said, err)
	}
	var p Range
	if p.Sequences, p.Letters, err = b.volumes(base, Prot, &p); err != nil {
		return err
	}
	// makeprofiledb may end with 0 after an error. For delta it leaves out invalid profiles.
	if p.Sequences == 0 || o.Profiles == RPS && p.Sequences != int64(len(names)) || !exists(filepath.Join(b.data, p.Volumes[0]+".rps")) {
		return &Error{Kind: Failed, Message: fmt.Sprintf("makeprofiledb has stored %d of %d profiles: %s", p.Sequences, len(names), bytes.TrimSpace(said)), HintText: "each profile needs an id of its own: psiblast keeps the id of its query with -parse_deflines"}
	}
	d := &b.desc
	d.Type, d.Profiles, d.Version, d.Title = Prot, o.Profiles, o.Version, o.Title
	d.Date = newest.UTC().Truncate(time.Minute)
	d.Fragments = []Range{p}
	o.Progress.Formatted.Add(1)
	return nil
}
