package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// RecordFormat is the format of a [Record].
const RecordFormat = "premix image 1"

// Files of a record's tree.
const (
	recordFile   = "image.json"
	configFile   = "config.json"
	manifestFile = "manifest.json"

	maxFile = 16 << 20 // of each file, in bytes
)

// Prefixes of the names of trees that belong to images.
const (
	imagesPrefix = "images/"
	layersPrefix = "layers/"
	chainsPrefix = "chains/"
)

// Record lists the parts of an image. Digests with "sha256:" are OCI's.
type Record struct {
	Format       string        `json:"format"`
	Config       string        `json:"config"`             // digest of config.json
	Manifest     string        `json:"manifest,omitempty"` // digest of manifest.json
	OS           string        `json:"os"`
	Architecture string        `json:"architecture"` // as in GOARCH
	Variant      string        `json:"variant,omitempty"`
	Root         object.Digest `json:"root"`   // the tree of all layers
	Layers       []Layer       `json:"layers"` // lowest first
}

// Layer is a layer of a [Record].
type Layer struct {
	DiffID    string        `json:"diff_id"`
	ChainID   string        `json:"chain_id"`
	Digest    string        `json:"digest,omitempty"` // of the archive, perhaps compressed, as received
	Size      int64         `json:"size,omitempty"`   // of the archive, bytes
	MediaType string        `json:"media_type,omitempty"`
	Tree      object.Digest `json:"tree"`
	Alone     bool          `json:"alone"` // the tree is the same on top of any layers
}

// Image is an image of a store.
type Image struct {
	Record
	Settings v1.Config // defaults for its containers
}

// RecordRef returns the reference of an image's record. The image is named NAME[:TAG],
// or NAME@DIGEST by the digest of the record.
func RecordRef(ref tree.Ref) tree.Ref {
	ref.Name = imagesPrefix + ref.Name
	return ref
}

// LayerRef returns the reference of a layer that stands alone, by its diff id, with or
// without "sha256:".
func LayerRef(diffID string) tree.Ref {
	return tree.Ref{Name: layersPrefix + strings.TrimPrefix(diffID, "sha256:"), Tag: tree.DefaultTag}
}

// ChainRef returns the reference of a layer on top of those below it, by its chain id,
// with or without "sha256:".
func ChainRef(chainID string) tree.Ref {
	return tree.Ref{Name: chainsPrefix + strings.TrimPrefix(chainID, "sha256:"), Tag: tree.DefaultTag}
}

// Open reads an image's record from the mount of its tree.
func Open(dir string) (*Image, error) {
	return read(func(name string) ([]byte, error) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, maxFile))
	})
}

// Load reads an image's record from a store. If there is none, the error is a
// store.UsageError or an [Error].
func Load(s *store.Store, ref tree.Ref) (*Image, *tree.TagRecord, error) {
	tag, err := s.Resolve(RecordRef(ref))
	if err != nil {
		return nil, nil, err
	}
	im, err := loadTree(s, tag.Tree)
	if err != nil {
		return nil, nil, fmt.Errorf("record of %s: %w", ref, err)
	}
	return im, tag, nil
}

func loadTree(s *store.Store, d object.Digest) (*Image, error) {
	t, err := s.Tree(d)
	if err != nil {
		return nil, err
	}
	fs, err := t.Image()
	if err != nil {
		return nil, err
	}
	return read(func(name string) ([]byte, error) {
		nid, err := fs.Lookup(fs.Root(), name)
		if err != nil {
			return nil, err
		}
		inode, err := fs.Inode(nid)
		if err != nil {
			return nil, err
		}
		content := make([]byte, min(inode.Size, maxFile))
		if _, err := fs.ReadAt(nid, content, 0); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return content, nil
	})
}

func read(file func(name string) ([]byte, error)) (*Image, error) {
	var im Image
	content, err := file(recordFile)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, &im.Record); err != nil {
		return nil, notRecord(err.Error())
	}
	if im.Format != RecordFormat {
		return nil, notRecord(fmt.Sprintf("its format is %q", im.Format))
	}
	if content, err = file(configFile); err != nil {
		return nil, err
	}
	config, err := parseConfig(content)
	if err != nil {
		return nil, err
	}
	im.Settings = config.Config
	return &im, nil
}

func notRecord(why string) error {
	return &Error{Kind: Damaged, Reason: "it is not a record of an image that this premix can read: " + why, HintText: "add the image again, with this premix"}
}

func parseConfig(content []byte) (*v1.ConfigFile, error) {
	var c v1.ConfigFile
	if err := json.Unmarshal(content, &c); err != nil {
		return nil, &Error{Kind: Damaged, Reason: "the image's configuration is not valid in OCI: " + err.Error(), HintText: "build or fetch the image again", Err: err}
	}
	return &c, nil
}
