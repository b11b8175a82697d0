package database_test

import (
	"testing"

	"premix/internal/blast/database"
)

// Cached properties of a database are read again after another database has taken its name.
func TestKinds(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 10)
	kinds := database.NewKinds(home)
	want := func(kind database.Type) {
		t.Helper()
		for range 2 {
			if got, err := kinds.Of("x"); err != nil || got != kind {
				t.Errorf("%q, %v, want %q", got, err, kind)
			}
		}
	}
	missing := func() {
		t.Helper()
		_, err := kinds.Of("x")
		wantKind(t, err, database.NotThere)
	}
	missing()
	add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl})
	want(database.Nucl)
	if _, err := database.Warm(t.Context(), home, "x", 0); err != nil {
		t.Fatal(err)
	}
	want(database.Nucl)
	if err := database.Remove(home, "x"); err != nil {
		t.Fatal(err)
	}
	missing()
	add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Prot})
	want(database.Prot)
	_, err := kinds.Of("../x")
	wantKind(t, err, database.Use)
}
