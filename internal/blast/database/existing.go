package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// volume is a volume of an existing database.
type volume struct {
	path  string // without extension
	index *index
}

// existing imports a database that makeblastdb has made.
func (b *builder) existing(ctx context.Context) error {
	kind, err := existingType(b.o.Source, b.o.Type)
	if err != nil {
		return err
	}
	if b.o.Recut {
		return b.recut(ctx, kind)
	}
	if b.o.ParseIDs || b.o.TaxID != 0 || b.o.TaxIDMap != "" || len(b.o.Masks) > 0 || b.o.Duplicates {
		return &Error{Kind: Use, Message: b.o.Source + " is formatted already", HintText: "leave out the options for formatting, or give --recut to format it again"}
	}
	alias, volumes, err := existingVolumes(b.o.Source, kind, nil)
	if err != nil {
		return err
	}
	d := &b.desc
	d.Type, d.Title, d.Version = kind, alias, 0
	var letters int64
	for _, v := range volumes {
		letters += v.index.letters
		d.Version = v.index.version
		d.ParsedIDs = d.ParsedIDs || exists(v.path+"."+kind.letter()+"og")
		if d.Title == "" {
			d.Title = v.index.title
		}
		st, err := os.Stat(v.path + "." + kind.letter() + "in")
		if err != nil {
			return err
		}
		if st.ModTime().After(d.Date) {
			d.Date = st.ModTime().UTC().Truncate(time.Minute)
		}
		if t, err := time.Parse(dateForm, v.index.date); err == nil {
			d.Date = t // the date that BLAST+ prints
		}
	}
	if b.o.Title != "" {
		d.Title = b.o.Title
	}
	// Empty sequences leave empty volumes behind.
	volumes = slices.DeleteFunc(volumes, func(v volume) bool { return v.index.sequences == 0 })
	if len(volumes) == 0 {
		return &Error{Kind: Use, Message: b.o.Source + " has no sequences", HintText: "name another database"}
	}
	n := b.o.fragments(kind, letters)
	if n > len(volumes) {
		if b.o.Fragments > 0 {
			return &Error{Kind: Use, Message: fmt.Sprintf("%s has %d volumes, too few for %d fragments", b.o.Source, len(volumes), n), HintText: fmt.Sprintf("ask for %d, or give --recut to format it again", len(volumes))}
		}
		n = len(volumes)
	}
	b.o.Progress.Fragments.Store(int64(n))
	var m marks
	for i, v := range volumes {
		m.list = append(m.list, mark{offset: int64(i), sequences: m.sequences, letters: m.letters})
		m.sequences, m.letters = m.sequences+v.index.sequences, m.letters+v.index.letters
	}
	cuts := append(m.cut(n), mark{int64(len(volumes)), m.sequences, m.letters})
	for i := range n {
		p := Range{First: cuts[i].sequences, Sequences: cuts[i+1].sequences - cuts[i].sequences, Letters: cuts[i+1].letters - cuts[i].letters}
		for _, v := range volumes[cuts[i].offset:cuts[i+1].offset] {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := b.take(v, kind); err != nil {
				return err
			}
			p.Volumes = append(p.Volumes, filepath.Base(v.path))
		}
		d.Fragments = append(d.Fragments, p)
		b.o.Progress.Formatted.Add(1)
	}
	return nil
}

// take copies the files of a volume, and the files that it shares with others.
func (b *builder) take(v volume, kind Type) error {
	name := filepath.Base(v.path)
	if !isName(name) {
		return &Error{Kind: Use, Message: fmt.Sprintf("a volume has the name %q, which cannot be used in an alias", name), HintText: "give --recut to format the database again"}
	}
	files, err := filepath.Glob(escapeGlob(v.path) + "." + kind.letter() + "??")
	if err != nil {
		return err
	}
	for _, ending := range profileEndings {
		if f := v.path + "." + ending; exists(f) {
			files = append(files, f)
			if ending == "rps" {
				b.desc.Profiles = RPS
			}
		}
	}
	if exists(v.path + ".wcounts") {
		b.desc.Profiles = Delta
	}
	if x := v.index; x.lmdb != "" {
		stem := filepath.Join(filepath.Dir(v.path), strings.TrimSuffix(x.lmdb, filepath.Ext(x.lmdb)))
		for _, ending := range []string{"db", "os", "ot", "tf", "to"} {
			if shared := stem + "." + kind.letter() + ending; exists(shared) && !slices.Contains(files, shared) {
				files = append(files, shared)
			}
		}
	}
	for _, f := range files {
		to := filepath.Join(b.data, filepath.Base(f))
		if strings.HasSuffix(f, "al") {
			continue
		}
		_, err := copyFile(f, to)
		if errors.Is(err, fs.ErrExist) && filepath.Dir(f) == filepath.Dir(v.path) && !strings.HasPrefix(filepath.Base(f), name+".") {
			continue // shared, and copied already
		}
		if errors.Is(err, fs.ErrExist) {
			return &Error{Kind: Use, Message: fmt.Sprintf("two volumes have the name %s", name), HintText: "give --recut to format the database again"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// escapeGlob returns a pattern that matches only the path.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// existingType returns the type of the database at a path.
func existingType(path string, wished Type) (Type, error) {
	var found []Type
	for _, k := range []Type{Nucl, Prot} {
		if isDatabase(path, k) {
			found = append(found, k)
		}
	}
	switch {
	case len(found) == 0:
		return "", &Error{Kind: Use, Message: fmt.Sprintf("%s is neither a file nor a BLAST database", path), HintText: "name a FASTA file, or a BLAST database by its path without an ending"}
	case wished != "" && !slices.Contains(found, wished):
		return "", &Error{Kind: Use, Message: fmt.Sprintf("%s is a database of type %s", path, found[0]), HintText: "say --type " + string(found[0])}
	case wished == "" && len(found) == 2:
		return "", &Error{Kind: Use, Message: fmt.Sprintf("there are two databases %s", path), HintText: "give --type nucl or --type prot"}
	case wished != "":
		return wished, nil
	}
	return found[0], nil
}

// isDatabase reports whether there is a BLAST database of a type at a path.
func isDatabase(path string, k Type) bool {
	return exists(path+"."+k.letter()+"al") || exists(path+"."+k.letter()+"in")
}

// filters are the keywords that make an alias a part of its volumes.
var filters = []string{"GILIST", "TILIST", "SEQIDLIST", "TAXIDLIST", "OIDLIST", "FIRST_OID", "LAST_OID", "MASKLIST"}

// existingVolumes lists the volumes of the database at path, and the title in its alias.
// above are the aliases that refer to this one.
func existingVolumes(path string, kind Type, above []string) (title string, list []volume, err error) {
	indexFile, aliasFile := path+"."+kind.letter()+"in", path+"."+kind.letter()+"al"
	text, err := os.ReadFile(aliasFile)
	if errors.Is(err, fs.ErrNotExist) {
		x, err := readIndex(indexFile)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil, &Error{Kind: Use, Message: fmt.Sprintf("a volume is missing: %s does not exist", indexFile), HintText: "fetch the whole database again", Err: err}
		}
		return "", []volume{{path, x}}, err
	}
	if err != nil {
		return "", nil, err
	}
	if slices.Contains(above, path) {
		return "", nil, &Error{Kind: Use, Message: aliasFile + " leads back to itself", HintText: "name another database"}
	}
	stated := "" // number of sequences
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.TrimSpace(value)
		switch {
		case key == "TITLE":
			title = value
		case key == "NSEQ":
			stated = value
		case slices.Contains(filters, key):
			return "", nil, partError(path, key)
		case key == "DBLIST":
			for _, name := range aliasNames(value) {
				if !filepath.IsAbs(name) {
					name = filepath.Join(filepath.Dir(path), name)
				}
				_, more, err := existingVolumes(name, kind, append(slices.Clone(above), path))
				if err != nil {
					return "", nil, err
				}
				list = append(list, more...)
			}
		}
	}
	// makeprofiledb states the number of all sequences.
	var sequences int64
	for _, v := range list {
		sequences += v.index.sequences
	}
	if stated != "" && stated != strconv.FormatInt(sequences, 10) {
		return "", nil, partError(path, "NSEQ")
	}
	return title, list, nil
}

func partError(path, keyword string) error {
	return &Error{Kind: Use, Message: fmt.Sprintf("%s is only a part of its volumes (%s)", path, keyword), HintText: "give --recut to format the part again"}
}

// aliasNames splits a DBLIST at blanks, but not within double quotes.
func aliasNames(text string) []string {
	quoted := false
	return strings.FieldsFunc(text, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
			return true
		}
		return r == ' ' && !quoted || r == '\t' && !quoted
	})
}

// recut formats an existing database again from the output of blastdbcmd. It keeps taxonomy
// ids, but not masks.
func (b *builder) recut(ctx context.Context, kind Type) error {
	o := b.o
	source, err := filepath.Abs(o.Source)
	if err != nil {
		return err
	}
	o.Type = kind
	path := filepath.Join(b.scratch, "all.fa")
	said, err := b.tool(ctx, nil, "blastdbcmd", "-db", source, "-dbtype", string(kind), "-entry", "all", "-out", path)
	if err != nil {
		return toolError("blastdbcmd", said, err)
	}
	title, volumes, err := existingVolumes(source, kind, nil)
	if err == nil && len(volumes) > 0 {
		parsed := exists(volumes[0].path + "." + kind.letter() + "og")
		o.ParseIDs = o.ParseIDs || parsed
		if title == "" {
			title = volumes[0].index.title
		}
		if t, err := time.Parse(dateForm, volumes[0].index.date); err == nil {
			b.desc.Date = t
		}
		if parsed && o.Version == 5 && o.TaxIDMap == "" {
			o.TaxIDMap = filepath.Join(b.scratch, "taxids")
			if said, err := b.tool(ctx, nil, "blastdbcmd", "-db", source, "-dbtype", string(kind), "-entry", "all", "-outfmt", "%a %T", "-out", o.TaxIDMap); err != nil {
				return toolError("blastdbcmd", said, err)
			}
		}
		// If ids were not parsed, they may be repeated.
		o.Duplicates = o.Duplicates || !o.ParseIDs
	}
	return b.fasta(ctx, path, title)
}

// copyFile copies a file, by sharing its blocks if the file system supports that.
func copyFile(from, to string) (int64, error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, in)
	return n, errors.Join(err, out.Close())
}
