package search

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"premix/internal/blast/database"
)

// ordinal begins the id of a sequence in a database without parsed ids. The number of the
// sequence follows.
const ordinal = "gnl|BL_ORD_ID|"

// Sequences writes sequences of a database as FASTA, in the order of their ids, which are
// those of hits in a report (description.id in format 15). It fails unless each id names one
// sequence.
func Sequences(ctx context.Context, db *database.Database, ids []string, out io.Writer) error {
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = wholeAlias(dir, db, "whole"); err != nil {
		return err
	}
	var paths []string
	for _, m := range members(db) {
		paths = append(paths, filepath.Join(dir, m.Name))
	}
	for i, id := range ids {
		args := []string{"-dbtype", string(db.Type)}
		if number, ok := strings.CutPrefix(id, ordinal); ok {
			// blastdbcmd finds no sequence by its number: an alias selects it.
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil || n < 0 || n >= db.Sequences {
				return fmt.Errorf("the database has no sequence %s", id)
			}
			one, err := alias(dir, &database.Database{Name: "one", Type: db.Type, Title: "one"}, strconv.Itoa(i), fmt.Sprintf("FIRST_OID %d\nLAST_OID %[1]d\n", n+1), paths...)
			if err != nil {
				return err
			}
			args = append(args, "-db", filepath.Join(one, "one"), "-entry", "all")
		} else {
			args = append(args, "-db", inDirectory(dir, db.Name), "-target_only", "-entry", id)
		}
		p, err := prepare(ctx, dir, "blastdbcmd", 0, true, args...)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		p.cmd.Stdout = &text
		if err := p.end(p.cmd.Run()); err != nil {
			return err
		}
		if n := headers(text.Bytes()); n != 1 {
			return fmt.Errorf("the database has %d sequences with the id %s", n, id)
		}
		if _, err := out.Write(text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
