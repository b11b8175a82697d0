package origin_test

import (
	"os"
	"testing"

	"premix/internal/store/object"
)

// The encoder and the decoder of objects are made at their first use and then kept.
// TestMain makes them here, outside the bubble of any test (testing/synctest).
func TestMain(m *testing.M) {
	content := []byte("x")
	if _, err := object.Decode(nil, object.Sum(content), -1, object.Encode(nil, content)); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
