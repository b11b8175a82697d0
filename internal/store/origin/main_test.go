package origin_test

import (
	"os"
	"testing"

	"premix/internal/store/object"
)

// What objects are encoded and decoded with is made at its first use and kept: not in
// the bubble of the test that happens to be the first (testing/synctest).
func TestMain(m *testing.M) {
	content := []byte("x")
	if _, err := object.Decode(nil, object.Sum(content), -1, object.Encode(nil, content)); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
