package image

import (
	"context"
	"io"

	"premix/internal/image/layer"
)

// Blob is a layer, as a registry has it.
type Blob struct {
	Digest string // of the blob
	DiffID string // digest of the layer's archive, uncompressed
	Size   int64  // of the blob
	Open   func() (io.ReadCloser, error)
}

// Unpack unpacks a layer into an empty directory for overlayfs, and verifies its digests.
// After an error the directory has a part of it. parent is a directory with the layers
// below, or "".
func Unpack(ctx context.Context, b Blob, dir, parent string) (*layer.Applied, error) {
	in := &blob{diffID: b.DiffID, digest: b.Digest, size: b.Size, open: b.Open}
	applied, err := apply(ctx, in, dir, layer.Options{Overlay: true, Parent: parent, Limits: &layer.Limits{Bytes: DefaultBytes, Entries: DefaultEntries}})
	return applied, explain(in.String(), err)
}

// DiffIDs returns the n diff ids in the configuration of an image.
func DiffIDs(config []byte, n int) ([]string, error) { return diffIDs(config, n) }

// ChainIDs returns the chain ids of layers with the given diff ids.
func ChainIDs(diffIDs []string) []string {
	var chains []string
	for i, id := range diffIDs {
		if i > 0 {
			id = sum([]byte(chains[i-1] + " " + id))
		}
		chains = append(chains, id)
	}
	return chains
}
