package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/store"
)

func (a *app) storeInit(o *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "Make a store and its key",
		Long: `Make a store in DIR, which must be empty or not exist, and the key that signs its tags.
The private key is not kept in the store: it is in $PREMIX_HOME/keys, or in the directory
for configurations, or in the file of --key. Keep a copy of it.`,
		Args: arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := store.Init(args[0], store.Options{Home: store.Home(), KeyFile: o.key})
			if err != nil {
				return err
			}
			return a.showKeys(s, o.key)
		},
	}
}

// keyRow describes a store's keys.
type keyRow struct {
	Store string   `json:"store"`
	ID    string   `json:"id"`
	Keys  []string `json:"keys"`           // public; the last one signs
	File  string   `json:"file,omitempty"` // of the private key
	Here  bool     `json:"here"`           // the private key is there and matches the store's
}

func (a *app) showKeys(s *store.Store, file string) error {
	info := s.Info()
	row := keyRow{Store: s.Dir(), ID: info.ID}
	for _, k := range info.Keys {
		row.Keys = append(row.Keys, k.String())
	}
	var err error
	if row.File, err = s.KeyFile(file); err != nil {
		return err
	}
	_, missing := s.Key(file)
	row.Here = missing == nil
	if a.json {
		return a.printJSON(row)
	}
	fmt.Fprintf(a.stdout, "store %s\nid    %s\n", row.Store, row.ID)
	for i, k := range row.Keys {
		note := ""
		if i < len(row.Keys)-1 {
			note = "  (earlier)"
		}
		fmt.Fprintf(a.stdout, "key   %s%s\n", k, note)
	}
	if !row.Here {
		_, err = fmt.Fprintf(a.stdout, "file  %s (cannot be used: %v)\n", row.File, missing)
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "file  %s\n", row.File)
	return err
}
